"""The trajectory tree of an execution: what its model calls share, which of them are the agent's own, and which paths are trained.

`facts` reads a model call without its tokens, `tree` folds the calls of one execution, `forest` those of a run, `owned` keeps the
calls that count, `roles` says what each call was, `segments` cuts a tree into pieces without a branch, `select` draws the
trajectories that train, `path` hashes token sequences, `conversation` tells which call a history goes on from. A candidate is never
expanded into its full history before it is selected.
"""
