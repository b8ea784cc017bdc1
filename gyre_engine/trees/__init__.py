"""The trajectory tree of an execution: what its model calls share, which of them are the agent's own, and which paths are trained.

What a new call goes on from: `conversation` tells which recorded call a history goes on from, `path` finds and hashes the token
sequences behind it, `layout` keeps one of them in one piece.

What recorded calls make: `facts` reads a call without its tokens, `owned` keeps the calls that count, `tree` folds those of one
execution and `forest` those of a run, `roles` says what each call was, `segments` cuts a tree into pieces without a branch, `select`
draws the trajectories that train, `branches` shows a tree to those who look. A candidate is never expanded into its full history
before it is selected.
"""
