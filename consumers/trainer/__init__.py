"""The trainers: one a cell. Every trainer is a member that claims micro-steps; the core cell's also opens, merges and commits.

reads     training, micro-steps, cells (its own role); the core also commands, trajectories, executions, model-calls
writes    training (the ledger), micro-steps (the core)
promises  every micro-step counts once in every committed step (gyre_engine.training.ledger.fold); only committed weights are published
"""
