"""The parent that tests fork processes from, with what these need already loaded, as the supervisor's preloaders have.

A process has one such parent, and it loads only what was named before its first child: so the list stands here alone.
"""

from __future__ import annotations

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["gyre_engine.sampling.native", "gyre_engine.training.ranks.spread", "gyre_engine.training.optimizer.adamw"]
)
