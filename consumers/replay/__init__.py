"""Replay: train again from the log and the initial weights alone, and check every step.

reads     runs, training, micro-steps, trajectories, model-calls
writes    nothing
promises  a step is verified only where its micro-steps follow from the model calls and its weights hash to what was committed
"""
