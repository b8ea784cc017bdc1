"""Faust stream processors: events to derived events.

`derivation` is what a stream is, `trajectory_trees`, `admission` and `water_level` are the three (`registry`); `driver` applies each
record once, `app` is Faust around it, `watchdog` ends what hangs, `process` runs all of it, `settings` is what it is told.
"""
