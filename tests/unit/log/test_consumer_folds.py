"""Consumers that fold, act and read back: they begin at the beginning, act once caught up, and hold commits back until settled."""

from __future__ import annotations

import pytest

from gyre_engine.events import Recorded
from gyre_engine.events.cells import SchedulerElected
from gyre_engine.log.consumer import Consumer, Health, Reading
from gyre_engine.log.memory import MemoryLog
from gyre_engine.log.port import LogUnavailable, Offsets

SETTINGS = Reading(batch=2, poll_seconds=0.01, commit_seconds=0.0, lag_seconds=0.0)


def filled(count: int) -> MemoryLog:
    log = MemoryLog()
    log.append_all([SchedulerElected(epoch=n, holder="a") for n in range(count)])
    return log


class Fold(Consumer):
    """Keeps the epochs it has seen; what happened in `told`."""

    name = "fold"
    topics = ("commands",)
    begins: Offsets | None = None

    def __init__(self, log: MemoryLog) -> None:
        self.reports: list[Health] = []
        super().__init__(log, SETTINGS, self.reports.append)
        self.epochs: list[int] = []
        self.told: list[str] = []

    def group(self) -> str | None:
        return None

    def start(self) -> Offsets | None:
        return self.begins

    def handle(self, record: Recorded) -> None:
        assert isinstance(record.event, SchedulerElected)
        self.epochs.append(record.event.epoch)

    def caught_up(self) -> None:
        self.told.append(f"caught up at {len(self.epochs)}")

    def idle(self) -> None:
        if self.is_caught_up:
            self.told.append(f"acts at {len(self.epochs)}")


def test_a_fold_reads_from_the_beginning_every_time_and_acts_once_it_has_read_what_stands_there() -> None:
    log = filled(5)
    for _ in range(2):
        fold = Fold(log)
        fold.run_to_end()
        assert fold.epochs == [0, 1, 2, 3, 4]
        assert fold.told == ["caught up at 5", "acts at 5"]


def test_it_begins_where_it_says() -> None:
    fold = Fold(filled(5))
    fold.begins = {("commands", 0): 3}
    fold.run_to_end()
    assert fold.epochs == [3, 4]


def test_what_it_writes_it_can_read_back_before_it_goes_on() -> None:
    class Elected(Fold):
        def caught_up(self) -> None:
            self.log.append_all([SchedulerElected(epoch=9, holder="b")])
            self.read_on(lambda: 9 in self.epochs, "the election did not come back")
            super().caught_up()

    fold = Elected(filled(3))
    fold.run_to_end()
    assert (fold.epochs, fold.told[0]) == ([0, 1, 2, 9], "caught up at 4")
    assert fold.health().handled == 4


def test_reading_back_has_a_limit() -> None:
    class Deaf(Fold):
        def caught_up(self) -> None:
            self.read_on(lambda: False, "the election did not come back", 0.01)

    with pytest.raises(LogUnavailable, match="the election did not come back within"):
        Deaf(filled(1)).run_to_end()


def test_the_report_says_how_far_it_is_behind_after_each_round() -> None:
    fold = Fold(filled(4))
    fold.run_to_end()
    assert [(r.handled, r.lag, r.running) for r in fold.reports] == [(2, 2, True), (4, 0, True), (4, 0, False)]


def test_positions_wait_for_what_is_not_settled() -> None:
    class Owing(Fold):
        owed = 0

        def group(self) -> str | None:
            return "owing"

        def settled(self) -> bool:
            return not self.owed

        def handle(self, record: Recorded) -> None:
            super().handle(record)
            self.owed += self.epochs[-1] == 2
            if self.epochs[-1] == 3:
                self.stop()

    log = filled(4)
    owing = Owing(log)
    owing.run()
    at = log.follow(["commands"], group="owing").positions()
    assert (owing.epochs, at) == ([0, 1, 2, 3], {("commands", 0): 2})
    again = Owing(log)
    again.run()
    assert again.epochs == [2, 3]
