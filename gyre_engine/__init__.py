"""The domain of Gyre: events, the log, trees, batching, losses, scheduling, sampling, training, transfer.

Imports no web framework and no other top-level package. `import gyre_engine` costs nothing: parts are imported by name.
"""
