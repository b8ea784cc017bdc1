"""The domain of Gyre, and what it needs of the world. Imports no web framework and no other top-level package.

`events` are what happens and `log` is where it stands. Of an execution: `tasks`, `sampling`, `trees` of its calls, `work_product`.
From there to a step: `admission`, `batching`, `losses`, `experts` of a mixture, `training`, `transfer` of what cells read of each
other; `scheduling` says who does it and when, `reports` what came of it.

Of the world: `config`, `sandbox`, `harbor`, `keys`. Of a process: `lifeline`, which it hangs on, `signals` that end it, and
`dead_end`, an end that no other start mends.

`import gyre_engine` costs nothing: parts are imported by name.
"""
