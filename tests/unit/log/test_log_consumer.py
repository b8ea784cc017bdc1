"""The base of the consumers, on the log in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.events import Recorded
from gyre_engine.events.cells import SchedulerElected
from gyre_engine.events.log import DeadLetter
from gyre_engine.log.consumer import Consumer, HandlingFailed, Reading
from gyre_engine.log.memory import MemoryFollower, MemoryLog
from gyre_engine.log.port import LogUnavailable

SETTINGS = Reading(batch=4, poll_seconds=0.01, commit_seconds=0.0, lag_seconds=0.0)


class Numbers(Consumer):
    """Collects numbers; raises once for each number in `bad`."""

    name = "numbers"
    topics = ("commands",)

    def __init__(self, log: MemoryLog, results: list[int], bad: set[int], last: int) -> None:
        super().__init__(log, SETTINGS)
        self.results, self.bad, self.last = results, bad, last

    def handle(self, record: Recorded) -> None:
        assert isinstance(record.event, SchedulerElected)
        if record.event.epoch in self.bad:
            self.bad.discard(record.event.epoch)
            raise ValueError("once")
        self.results.append(record.event.epoch)

    def idle(self) -> None:
        if self.results and self.results[-1] == self.last:
            self.stop()


def filled(count: int) -> MemoryLog:
    log = MemoryLog()
    log.append_all([SchedulerElected(epoch=n, holder="s") for n in range(count)])
    return log


@settings(deadline=None)
@given(count=st.integers(1, 30), bad=st.sets(st.integers(0, 29), max_size=5))
def test_whatever_fails_once_everything_is_handled_in_order_and_once(count: int, bad: set[int]) -> None:
    log, results = filled(count), []
    bad = {n for n in bad if n < count}
    restarts = len(bad)
    for _ in range(restarts):
        with pytest.raises(HandlingFailed):
            Numbers(log, results, bad, count - 1).run()
    Numbers(log, results, bad, count - 1).run()
    assert results == list(range(count))


def test_a_failing_batch_is_named_by_its_first_event_and_comes_again_whole() -> None:
    class Batches(Numbers):
        def handle_batch(self, records: Sequence[Recorded]) -> None:
            numbers = [r.event.epoch for r in records if isinstance(r.event, SchedulerElected)]
            if 5 in numbers and 5 in self.bad:
                self.bad.discard(5)
                raise ValueError("in the middle")
            self.results += numbers

    log, results, bad = filled(10), [], {5}
    with pytest.raises(
        HandlingFailed, match=r"a batch of 4 from scheduler-elected \(commands, partition 0, offset 4.*in the middle"
    ):
        Batches(log, results, bad, 9).run()
    assert results == [0, 1, 2, 3]
    Batches(log, results, bad, 9).run()
    assert results == list(range(10))


def test_a_stop_finishes_the_batch_at_hand_and_commits_it() -> None:
    class Stopping(Numbers):
        def handle(self, record: Recorded) -> None:
            super().handle(record)
            self.stop()

    log, results = filled(10), []
    Stopping(log, results, set(), -1).run()
    assert results == [0, 1, 2, 3]  # the batch has four
    assert log.follow(["commands"], group="numbers").positions() == {("commands", 0): 4}


def test_health_counts_what_was_handled_and_what_is_left() -> None:
    log, results = filled(6), []
    consumer = Numbers(log, results, set(), 3)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    thread.join(10)
    health = consumer.health()
    assert (health.name, health.running, health.handled, health.lag, health.failure) == ("numbers", False, 4, 2, "")
    assert health.last_event_at > 1_600_000_000_000_000


def test_an_event_that_is_bad_in_itself_can_be_buried() -> None:
    class Burying(Numbers):
        def handle(self, record: Recorded) -> None:
            assert isinstance(record.event, SchedulerElected)
            if record.event.epoch == 1:
                self.bury(record, "makes no sense")
                return
            super().handle(record)

    log, results = filled(3), []
    Burying(log, results, set(), 2).run()
    assert results == [0, 2]
    (letter,) = log.read("dead-letters")
    assert isinstance(letter.event, DeadLetter)
    assert (letter.event.topic, letter.event.offset, letter.event.reader, letter.event.reason) == (
        "commands",
        1,
        "numbers",
        "makes no sense",
    )


class Forgetful(MemoryLog):
    """A log whose groups cannot be reached the first `failures` times."""

    failures = 3

    def follow(self, *topics: object, **how: object) -> MemoryFollower:  # type: ignore[override]
        if self.failures:
            self.failures -= 1
            raise LogUnavailable("away")
        return super().follow(*topics, **how)  # type: ignore[arg-type]


def test_a_log_that_is_away_is_waited_for_within_a_limit() -> None:
    log = Forgetful()
    log.append_all([SchedulerElected(epoch=n, holder="s") for n in range(3)])
    results: list[int] = []
    Numbers(log, results, set(), 2).run()
    assert results == [0, 1, 2]
    log.failures = 1_000_000
    impatient = Numbers(log, results, set(), 2)
    impatient.reading = Reading(away_seconds=0.0)
    with pytest.raises(LogUnavailable, match="away"):
        impatient.run()
