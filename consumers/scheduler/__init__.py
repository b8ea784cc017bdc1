"""The scheduler: the one consumer that commands role switches (log-rules, 8).

reads     water-level, cells, commands, trajectories, training
writes    commands: scheduler-elected, switch-role
promises  serial switches; of two schedulers only the one with the higher epoch is obeyed; decisions are the pure policy's
"""
