"""What only the log in memory can do: hold acknowledgements back."""

from __future__ import annotations

import pytest

from gyre_engine.events.executions import Started
from gyre_engine.log.memory import MemoryLog, MemoryStore
from gyre_engine.log.port import LogUnavailable
from gyre_engine.log.runs import NoSuchRun, find_run, list_runs


def test_what_is_held_back_is_neither_acknowledged_nor_visible() -> None:
    store = MemoryStore()
    log = MemoryLog(store)
    store.hold()
    first, second = log.append(Started(execution="a")), log.append(Started(execution="a"))
    assert not first.done() and list(log.read("executions")) == []
    with pytest.raises(LogUnavailable, match=r"within 0.01 s"):
        log.append_all([Started(execution="b")], timeout=0.01)
    store.release()
    assert [first.result(0).offset, second.result(0).offset] == [0, 1]
    assert len(list(log.read("executions"))) == 3


def test_what_was_held_too_long_fails_and_is_lost() -> None:
    store = MemoryStore()
    log = MemoryLog(store)
    store.hold()
    future = log.append(Started(execution="a"))
    store.release(lost=True)
    with pytest.raises(LogUnavailable):
        future.result(0)
    assert list(log.read("executions")) == []


def test_two_runs_in_one_store_do_not_see_each_other() -> None:
    store = MemoryStore()
    one, two = MemoryLog(store, "one"), MemoryLog(store, "two")
    one.append(Started(execution="a")).result(0)
    assert list(two.read("executions")) == []
    follower = one.follow(["executions"], group="g")
    follower.poll(0.1)
    follower.commit()
    two.append(Started(execution="a")).result(0)
    assert two.follow(["executions"], group="g").lag() == 1


def test_an_empty_list_of_runs_names_none() -> None:
    log = MemoryLog()
    assert list_runs(log) == []
    with pytest.raises(NoSuchRun, match="newest: none"):
        find_run(log)
