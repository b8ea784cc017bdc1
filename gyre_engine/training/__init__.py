"""Training: a replica turns packed micro-steps into a gradient sum; the core's optimizer turns sums into weights.

Light: `replica` holds the ports, `core_replica` that of what changes weights in place, `metrics` what a micro-step and an update say
of themselves, `ledger` who computes what and what counts, `backlog` what a core has yet to train on, `checkpoint` what it stores,
`fingerprint` what makes two machines comparable, `mesh` how the ranks of a cell share a model. `opening` and `reference`, the replica
of a cell and the policy that a loss may look at besides, are so until they are called.

`measures` of a micro-step, `model`, `ranks` and `optimizer` import torch (and Megatron-core, 12 s the first time): only trainers
import them, forked from a parent that has them loaded.
"""
