"""Replay: train again from the log and the initial weights alone, and check every step.

`derive` makes decisions and micro-steps again from their sources, `process` trains and gives the verdict step by step.
"""
