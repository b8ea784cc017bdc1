"""A crew is forked off a process with one thread, or not at all: a fork would copy one thread and the locks that the others held."""

from __future__ import annotations

import threading

import pytest

from gyre_engine.training.ranks.crew import Crew, RankLost


def test_a_process_with_threads_forks_no_ranks() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with pytest.raises(RankLost, match=r"this process has \d+ threads.* process of its own"):
            Crew.fork(2, lambda rank: rank)
    finally:
        done.set()
        other.join()
