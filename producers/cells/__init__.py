"""Cells: the agent that obeys commands and publishes the cell's state, and the engine's server process.

Light: the engine and the trainer of a cell are processes of their own.
"""
