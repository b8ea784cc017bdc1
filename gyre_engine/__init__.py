"""The domain of Gyre: events, the log, trees, admission, batching, losses, scheduling, sampling, training, transfer; and what they
need of the world: tasks, work products, sandbox, harbor, config, keys, lifeline.

Imports no web framework and no other top-level package. `import gyre_engine` costs nothing: parts are imported by name.
"""
