"""Training: a replica turns packed micro-steps into a gradient sum; the core's optimizer turns sums into weights.

`replica` holds the ports and is light, as is `ledger`, which says who computes what and what counts. `model`, `ranks` and `optimizer`
import torch (and Megatron-core, 12 s the first time): only trainers import them, forked from a parent that has them loaded.
"""
