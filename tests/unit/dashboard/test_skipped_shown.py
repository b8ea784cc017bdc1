"""A run says how many of its steps were skipped because their gradient was not finite."""

import io
from dataclasses import replace

from rich.console import Console

from consumers.dashboard.terminal import final_table, one_line
from consumers.dashboard.view import RunView
from gyre_engine.events.training import StepCommitted


def committed(step: int, **metrics: float) -> StepCommitted:
    return StepCommitted(
        core_epoch=1, step=step, attempt=1, merge_order=(), weights_hash="w", executions=1, grad_norm=0.0, loss=0.0, reward_mean=0.5,
        metrics=metrics,
    )  # fmt: skip


def shown(view: RunView) -> str:
    console = Console(file=io.StringIO(), width=120)
    final_table(view, console, 1.0)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_skipped_steps_are_counted_where_there_are_any() -> None:
    view = RunView(3)
    view.see(committed(1, lr=0.1))
    assert "skipped" not in one_line(view) + shown(view)
    view.see(committed(2, skipped=1.0))
    assert one_line(view).endswith("skipped steps 1")
    assert "2, 1 of them skipped (no finite gradient)" in shown(view)


def test_steps_with_nothing_to_train_on_are_counted() -> None:
    view = RunView(3)
    view.see(committed(1, lr=0.1))
    assert "nothing to train on" not in one_line(view) + shown(view)
    view.see(replace(committed(2), executions=0))
    assert one_line(view).endswith("steps with nothing to train on 1")
    assert "2, 1 with nothing to train on" in shown(view)
