"""Reporting: one `step-reported` a committed step, shown in Prometheus, TensorBoard and, if asked for, Weights & Biases.

`process` follows the log and writes reports, `displays` is what shows one; `prometheus`, `tensorboard_file` and `wandb_run` are three
that do.
"""
