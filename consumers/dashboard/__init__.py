"""What a person sees of a run while it goes on, and its summary at the end.

reads     executions, model-calls, cells, commands, water-level, training
writes    nothing
promises  every figure is a fold of the log: shown again later it is the same
"""
