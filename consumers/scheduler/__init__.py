"""The scheduler: the one consumer that commands role switches (log-rules, 8).

`process` reads and commands, `view` is what it has read, folded; what it decides (the policy, where interrupted calls go on, who says
nothing any more) is gyre_engine.scheduling.

promises  serial switches; of two schedulers only the one with the higher epoch is obeyed; decisions are the pure policy's
"""
