"""What `gyre trees` draws of a hand-worked tree: two contexts of the agent with a sub-agent, a title call and a retry."""

from __future__ import annotations

import pytest
from rich.console import Console

from gyre_engine.admission import AdmissionSettings
from gyre_engine.events.calls import Role, TreeClosed, TreeNode
from gyre_engine.events.executions import Dispatched
from gyre_engine.events.training import AdmittedExecution, GroupAdmitted, LeftOut
from gyre_engine.log.memory import MemoryLog
from gyre_engine.trees.branches import branches_of
from gyre_engine.trees.select import SelectionSettings, select
from infra.cli.errors import CommandError
from infra.cli.trees import draw_tree

NAME = "g000004.1.0"
NODES = (
    TreeNode("aaaaaaaa11", None, 0, 100, 10, True, Role.MAIN, 3),
    TreeNode("bbbbbbbb11", "aaaaaaaa11", 110, 5, 20, True, Role.MAIN, 3),
    TreeNode("cccccccc11", "bbbbbbbb11", 135, 2, 4, True, Role.ABANDONED, 3),
    TreeNode("dddddddd11", "bbbbbbbb11", 135, 2, 30, True, Role.MAIN, 3),
    TreeNode("eeeeeeee11", "aaaaaaaa11", 110, 7, 1000, True, Role.MAIN, 3),
    TreeNode("ffffffff11", None, 0, 50, 6, True, Role.SIDE, 3),
    TreeNode("99999999aa", None, 0, 40, 8, False, Role.SUB_AGENT, 3),
)
SAMPLED = 1078


def settings(j_max: int) -> AdmissionSettings:
    return AdmissionSettings("verifier", "1", SelectionSettings(j_max))


def log_with(*events: object) -> MemoryLog:
    log = MemoryLog(run="r-1")
    log.append(TreeClosed(execution=NAME, nodes=NODES, sampled_tokens=SAMPLED, tree_tokens=SAMPLED, delivered=1.0))
    for event in events:
        log.append(event)  # type: ignore[arg-type]
    return log


def dispatched(evaluation: str | None) -> Dispatched:
    return Dispatched(
        execution=NAME, group="g000004", group_number=4, index=1, attempt=0, group_size=4, class_number=1, query="q", source="s",
        split="train", harness="mini", weight_version=3, evaluation=evaluation,
    )  # fmt: skip


def admitted(reason: str) -> GroupAdmitted:
    chosen = select(NAME, NODES, settings(1).selection)
    mine = AdmittedExecution(
        NAME, 1, "score", 1.0, 0.75, chosen.trained_tokens, chosen.trajectories, chosen.left_out, chosen.min_version
    )
    other = AdmittedExecution("g000004.0.0", 0, "score", 0.5, -0.75, 0, (), (), 3)
    return GroupAdmitted(
        group="g000004", group_number=4, class_number=1, query="q", dispatched_version=3, mean=0.75, deviation=0.25,
        trains=not reason, reason=reason, executions=(other, mine), left_out=(LeftOut("g000004.2.0", "overall-timeout", 0),),
    )  # fmt: skip


def drawn(log: MemoryLog, execution: str = NAME, j_max: int = 1, *, calls: bool = False) -> list[str]:
    console = Console(width=80, no_color=True)
    with console.capture() as said:
        draw_tree(log, execution, settings(j_max), console, calls=calls)
    return [line.rstrip() for line in said.get().splitlines()]


def test_a_branch_is_what_goes_on_from_the_very_end_in_the_same_role() -> None:
    found = [("".join(call.node[0] for call in branch.calls), branch.parent) for branch in branches_of(NODES)]
    assert found == [("abd", -1), ("c", 0), ("e", 0), ("f", -1), ("9", -1)]


def test_an_execution_that_trains_is_drawn_with_what_was_taken_and_left_and_why() -> None:
    """J_max = 1: the leaf e holds 1010 unmasked tokens, d 60 on its path; the seed of this execution draws e."""
    assert drawn(log_with(dispatched(None), admitted(""))) == [
        "g000004.1.0  7 calls, 1,078 tokens sampled, delivered 1.00",
        "group g000004: reward 1, advantage +0.75 (mean 0.75 of 2 executions); 1,010 of 1,078 tokens trained",
        "├── main  aaaaaaaa..dddddddd  3 calls at 0: +107 in, +60 out",
        "│     left out: 50 tokens, J_max is reached",
        "│   ├── abandoned  cccccccc  1 call at 135, off bbbbbbbb: +2 in, +4 out",
        "│   │     left out: 4 tokens, abandoned is not among the classes that train",
        "│   └── main  eeeeeeee  1 call at 110, off aaaaaaaa: +7 in, +1,000 out",
        "│         trained, draw 1: +1,010 tokens (one of 2 leaves of main, 1,010 of their 1,070 unmasked tokens)",
        "├── side  ffffffff  1 call at 0: +50 in, +6 out",
        "│     left out: 6 tokens, side is not among the classes that train",
        "└── sub-agent  99999999  1 call at 0: +40 in, +8 out",
        "      left out: 8 tokens, their calls may not be trained on (`untrainable` in model-calls)",
        "at most 1 trajectories an execution (selection.j_max), by class: main, main-summary, sub-agent, sub-agent-summary",
    ]


def test_a_terminal_gets_whole_lines_folded() -> None:
    console = Console(width=60, no_color=True, force_terminal=True)
    with console.capture() as said:
        draw_tree(log_with(admitted("")), NAME, settings(1), console)
    assert "of their 1,070 unmasked tokens)" in " ".join(said.get().replace("│", " ").split())


def test_every_call_is_shown_where_it_is_asked_for() -> None:
    lines = drawn(log_with(), "latest", calls=True)
    assert lines[1] == "its group is not decided yet; shown is what would be selected"
    assert lines[3:6] == [
        "│     aaaaaaaa  at 0: +100 in, +10 out",
        "│     bbbbbbbb  at 110: +5 in, +20 out",
        "│     dddddddd  at 135: +2 in, +30 out",
    ]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((dispatched("v002-test"),), "an evaluation: not trained on; shown is what would be selected"),
        ((admitted("zero-variance"),), "not trained on: group g000004 does not train (zero-variance); reward 1"),
    ],
)
def test_what_is_not_trained_says_why(events: tuple[object, ...], said: str) -> None:
    lines = drawn(log_with(*events))
    assert lines[1] == said
    assert sum("would be selected, draw" in line for line in lines) == 1


def test_an_execution_that_left_the_group_says_why() -> None:
    log = MemoryLog(run="r-1")
    name = "g000004.2.0"
    log.append(TreeClosed(execution=name, nodes=NODES, sampled_tokens=SAMPLED, tree_tokens=SAMPLED, delivered=1.0))
    log.append(admitted(""))
    assert drawn(log, name)[1] == "not trained on: overall-timeout"


def test_an_unknown_execution_gets_the_nearest() -> None:
    with pytest.raises(CommandError, match=r"no closed tree of execution 'g000004.1.1' on the log. Did you mean g000004.1.0"):
        drawn(log_with(), "g000004.1.1")
    with pytest.raises(CommandError, match="no execution of r-1 has a closed tree yet"):
        drawn(MemoryLog(run="r-1"))
