"""The summary's count of sampled tokens is that of the trees, whether or not an engine ever reported its own."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from consumers.dashboard.terminal import Display, final_table
from consumers.dashboard.view import RunView
from gyre_engine.events import Event
from gyre_engine.events.calls import ModelCall, ProxyOwns
from gyre_engine.events.cells import CellHealth, CellRole, CellStarted
from gyre_engine.trees.facts import of_call
from gyre_engine.trees.tree import TrajectoryTree
from tests.unit.trees.growth import EXECUTION, model_call


def owns(epoch: int) -> ProxyOwns:
    return ProxyOwns(execution=EXECUTION, owner_epoch=epoch, proxy="p")


def sampled(number: int, tokens: int, epoch: int = 1) -> ModelCall:
    """A context of its own; its call's name holds the epoch, as another record's would differ."""
    out = list(range(tokens))
    return model_call(number, None, 0, [7], out, call=f"c{number}-{epoch}", owner_epoch=epoch)


def in_the_tree(*events: Event) -> int:
    tree = TrajectoryTree(EXECUTION)
    for event in events:
        if isinstance(event, ProxyOwns):
            tree.own(event)
        elif isinstance(event, ModelCall):
            tree.add(of_call(event))
    return tree.sampled


def summary(*events: Event) -> str:
    """What a run that is over says of its tokens."""
    view, console = RunView(steps=1), Console(file=io.StringIO(), width=120)
    for event in events:
        view.see(event)
    Display("r", 0.0).render(view, 1.0)
    final_table(view, console, 1.0)
    [line] = [line for line in console.file.getvalue().splitlines() if "sampled" in line]  # type: ignore[attr-defined]
    return str(line).partition("tokens")[2].strip("│ ")


def test_a_run_whose_engines_never_reported_shows_what_its_calls_sampled() -> None:
    calls = (owns(1), sampled(0, 100), sampled(1, 64))
    assert summary(*calls).startswith("164 sampled, 0 trained") and in_the_tree(*calls) == 164


def test_what_engines_report_is_not_added_nor_lost_when_one_starts_again() -> None:
    up = CellStarted(
        cell="a", position=0, incarnation="a-1", engine="scripted", engine_url="", capacity=1, role=CellRole.SAMPLING,
        weight_version=0,
    )  # fmt: skip
    told = CellHealth(cell="a", incarnation="a-1", healthy=True, generated_tokens=60)
    assert summary(up, owns(1), sampled(0, 100), told, up, sampled(1, 64)).startswith("164 sampled")


def test_what_an_interrupted_call_threw_away_was_sampled_too() -> None:
    calls = (owns(1), replace(sampled(0, 100), discarded_tokens=36))
    assert summary(*calls).startswith("136 sampled, 0 trained") and in_the_tree(*calls) == 136


def test_a_deposed_proxys_record_and_one_that_stands_twice_do_not_count() -> None:
    first, late = sampled(0, 5), sampled(1, 7)
    events = (owns(1), first, first, owns(2), late, sampled(1, 11, epoch=2), late, sampled(2, 13, epoch=2))
    assert summary(*events).startswith("29 sampled") and in_the_tree(*events) == 5 + 11 + 13
