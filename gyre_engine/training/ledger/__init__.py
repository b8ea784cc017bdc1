"""The training ledger: the fold that decides who computes what and what counts, and what follows from it.

`fold` is pure and light: the scheduler, the cells and the reports use it too; so is `sums`, what seals and commits carry of a step's
metrics. `merge` and `history` compute a committed step again.
"""
