"""A checkpoint that a core passed over is told at once, on one line, and only by the session in which it happened."""

from __future__ import annotations

import pytest

from consumers.dashboard.notices import Notices, in_words
from consumers.dashboard.view import TOPICS
from gyre_engine.events.training import CheckpointPassedOver, CoreElected
from gyre_engine.log.memory import MemoryLog


def passed_over(step: int, instead: int) -> CheckpointPassedOver:
    return CheckpointPassedOver(
        core_epoch=2, step=step, reason="s3://b/step-00000007/model.safetensors is missing", instead=instead
    )


@pytest.mark.parametrize(("instead", "where"), [(5, "the checkpoint of step 5"), (0, "the initial weights")])
def test_it_names_the_checkpoint_what_is_wrong_with_it_and_from_where_the_run_goes_on(instead: int, where: str) -> None:
    said = in_words(passed_over(7, instead))
    assert said.startswith("the checkpoint of step 7 cannot be used: s3://b/step-00000007/model.safetensors is missing; ")
    assert said.endswith(f"; the run goes on from {where}, and makes the steps after it again")
    assert "\n" not in said


def test_what_stood_on_the_log_before_is_not_told_again() -> None:
    log, told = MemoryLog(), list[str]()
    log.append_all([passed_over(3, 2)])
    notices = Notices(log.ends(TOPICS), told.append)
    log.append_all([CoreElected(core_epoch=2, holder="h", cell="cell-0"), passed_over(7, 5), passed_over(6, 5)])
    for record in log.read("training"):
        notices.see(record)
    assert [line.partition(" cannot")[0] for line in told] == ["the checkpoint of step 7", "the checkpoint of step 6"]
