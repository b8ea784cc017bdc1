"""A process that ends for a reason that stays: on the log, in the config, in a file that only a person moves.

promises  whoever starts it need not try again: it says so by its exit status
"""

from __future__ import annotations

DEAD_END = 78
"""EX_CONFIG of sysexits.h. Python gives 1 to what it was not told about, and a shell 128 and more to signals."""


class DeadEnd(Exception):
    """Another start of the process would end the same way. The text says why and what a person can do."""
