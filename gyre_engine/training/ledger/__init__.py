"""The training ledger: the fold that decides who computes what and what counts, and what follows from it.

`fold` is pure and light: the scheduler, the cells and the reports use it too. `merge` and `history` compute a committed step again.
"""
