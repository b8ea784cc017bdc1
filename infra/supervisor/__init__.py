"""Keeps the processes of one stack: starts them, restarts them within a budget, and leaves nothing behind.

`Supervisor` watches; `gyre_engine.lifeline` ties every child to its parent, so that also a killed supervisor leaves no process;
`preloader` is the one parent of the heavy processes, which has imported torch and Megatron once; `state` is the stack's file and lock,
by which other commands attach.
"""
