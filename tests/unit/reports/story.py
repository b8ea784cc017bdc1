"""A small run on a log in memory, its figures worked out by hand.

step 1: groups g000000 and g000001, two members.

g000000.0.0  reward 1, 12 tokens sampled, 11 of them in the tree: calls a (0 + 10 + 5 = 15 tokens to its end), b after it (15 + 3 + 4 =
             22), c from inside of a (12 + 6 + 2 = 20); the leaves b and c are selected: 42 tokens of paths, 11 trained
g000000.1.0  reward 0, 4 sampled, one call d of 8 + 4 = 12 tokens, selected: 12 of paths, 4 trained
g000000.2.0  discarded after 6 sampled tokens
g000001.*    two of reward 0.5, 3 sampled each: zero variance, nothing of it trains; a third's evaluation failed, without a tree

sampled 12 + 4 + 6 + 3 + 3 = 28; delivered 27; paths 54, packed 36: dedup 1.5; trained 15.
g000002, of the next step, has zero variance and was decided between the two: 3 groups decided since the beginning, 2 of zero variance.
"""

from __future__ import annotations

from collections.abc import Iterable

from gyre_engine.events import Event, Recorded
from gyre_engine.events.calls import Role, TreeClosed, TreeNode
from gyre_engine.events.cells import ProbeGap
from gyre_engine.events.training import (
    AdmittedExecution,
    Claimed,
    CoreElected,
    GroupAdmitted,
    LeftOut,
    MemberJoined,
    Sealed,
    SelectedTrajectory,
    StepCommitted,
    StepOpened,
)
from gyre_engine.log.memory import MemoryLog

SECOND = 1_000_000
TOPICS = ("training", "trajectories", "trees", "cells")


def node(name: str, cut: int, new: int, out: int, parent: str | None = None) -> TreeNode:
    return TreeNode(name, parent, cut, new, out, True, Role.MAIN, 0)


def tree(execution: str, sampled: int, *nodes: TreeNode) -> TreeClosed:
    kept = sum(n.output_tokens for n in nodes)
    return TreeClosed(execution=execution, nodes=nodes, sampled_tokens=sampled, tree_tokens=kept, delivered=kept / sampled)


def one_call(execution: str, tokens: int) -> TreeClosed:
    return tree(execution, tokens, node(f"{execution}-call", 0, 5, tokens))


def execution(name: str, reward: float, *leaves: tuple[str, int]) -> AdmittedExecution:
    chosen = tuple(SelectedTrajectory(leaf, "main", tokens) for leaf, tokens in leaves)
    trained = sum(tokens for _, tokens in leaves)
    return AdmittedExecution(name, int(name.split(".")[1]), f"score-{name}", reward, 1.0, trained, chosen, (), 0)


def group(name: str, *executions: AdmittedExecution, reason: str = "", left_out: Iterable[LeftOut] = ()) -> GroupAdmitted:
    return GroupAdmitted(
        group=name, group_number=int(name[1:]), class_number=0, query="q", dispatched_version=0, mean=0.0, deviation=0.0,
        trains=not reason, reason=reason, executions=executions, left_out=tuple(left_out),
    )  # fmt: skip


def flat_group(name: str, reward: float = 0.5, left_out: Iterable[LeftOut] = ()) -> GroupAdmitted:
    """Of zero variance."""
    two = [execution(f"{name}.{i}.0", reward, (f"{name}.{i}.0-call", 3)) for i in range(2)]
    return group(name, *two, reason="zero-variance", left_out=left_out)


TREES = (
    tree("g000000.0.0", 12, node("a", 0, 10, 5), node("b", 15, 3, 4, "a"), node("c", 12, 6, 2, "a")),
    tree("g000000.1.0", 4, node("d", 0, 8, 4)),
    tree("g000000.2.0", 6, node("e", 0, 8, 6)),
    one_call("g000001.0.0", 3),
    one_call("g000001.1.0", 3),
)
FIRST = group(
    "g000000",
    execution("g000000.0.0", 1.0, ("b", 9), ("c", 2)),
    execution("g000000.1.0", 0.0, ("d", 4)),
    left_out=[LeftOut("g000000.2.0", "discarded: overall-timeout", 6)],
)
SECOND_GROUP = flat_group("g000001", left_out=[LeftOut("g000001.2.0", "evaluation-failed: crashed", 0)])
DECISIONS = (FIRST, flat_group("g000002"), SECOND_GROUP)
METRICS = {
    "targets": 15.0, "packed_tokens": 36.0, "members": 2.0, "clip_fraction": 0.2, "policy_loss": 0.5, "kl_loss": 0.25,
    "entropy_loss": -0.125, "entropy": 1.5, "kl": 0.01, "ratio_max": 12.0, "ratio_above_2": 3.0, "ratio_above_5": 2.0,
    "ratio_above_10": 1.0, "ratio_below_0.5": 0.0, "ratio_below_0.2": 0.0, "ratio_below_0.1": 0.0, "lr": 1e-4,
    "drift_0_tokens": 10.0, "drift_0_ratio_mean": 1.0, "drift_0_ratio_max": 1.5, "drift_0_gap_mean": 0.01,
    "drift_1_tokens": 5.0, "drift_1_ratio_mean": 0.9, "drift_1_ratio_max": 12.0, "drift_1_gap_mean": 0.2,
    "core_merge_s": 0.5, "core_wait_s": 1.0, "core_publish_s": 0.25, "core_data_s": 7.0, "core_burst_s": 0.5,
    "core_prepare_s": 0.125,
}  # fmt: skip


def joined(cell: str, step: int, attempt: int = 1, epoch: int = 1) -> MemberJoined:
    return MemberJoined(cell=cell, member_epoch=epoch, step=step, attempt=attempt, weights_hash="")


def claimed(cell: str, step: int, attempt: int = 1, epoch: int = 1) -> Claimed:
    return Claimed(cell=cell, member_epoch=epoch, step=step, attempt=attempt, count=1)


def sealed(cell: str, step: int, micro_step: str, tokens: int, attempt: int = 1, epoch: int = 1, **metrics: float) -> Sealed:
    return Sealed(
        cell=cell, member_epoch=epoch, step=step, attempt=attempt, micro_steps=(micro_step,), buffer_hash="", descriptor=b"",
        tokens=tokens, metrics=metrics,
    )  # fmt: skip


def opened(step: int, *groups: str, attempt: int = 1, core_epoch: int = 1) -> StepOpened:
    return StepOpened(
        core_epoch=core_epoch, step=step, attempt=attempt, weights_hash="", groups=groups, scores=(),
        micro_steps=(f"m{step}.0", f"m{step}.1"), executions=2, divisor=2, staleness_max=1, staleness_mean=0.25,
    )  # fmt: skip


def committed(step: int, *, attempt: int = 1, core_epoch: int = 1, epoch: int = 1) -> StepCommitted:
    return StepCommitted(
        core_epoch=core_epoch, step=step, attempt=attempt, merge_order=(("c1", epoch), ("c0", epoch)), weights_hash=f"w{step}",
        executions=2, grad_norm=0.75, loss=0.625, reward_mean=0.5, metrics=METRICS,
    )  # fmt: skip


def worked(step: int, attempt: int = 1, epoch: int = 1) -> list[Event]:
    """Both members join, take a micro-step each and seal, the satellite first."""
    members = ("c0", "c1")
    times = {"compute_s": 2.0, "wait_s": 0.5, "merge_s": 0.125}
    return [
        *(joined(cell, step, attempt, epoch) for cell in members),
        *(claimed(cell, step, attempt, epoch) for cell in members),
        sealed("c1", step, f"m{step}.1", 4, attempt, epoch, **times, publish_s=0.75),
        sealed("c0", step, f"m{step}.0", 11, attempt, epoch, **times, publish_s=0.0),
    ]


LEDGER: tuple[Event, ...] = (
    CoreElected(core_epoch=1, holder="h", cell="c0"), opened(1, "g000000", "g000001"), *worked(1), committed(1),
)  # fmt: skip

SECOND_STEP: tuple[Event, ...] = (
    *(one_call(f"g00000{g}.{i}.0", 3) for g in (2, 3) for i in range(2)), flat_group("g000003", reward=0.25),
    opened(2, "g000002", "g000003"), *worked(2, epoch=2), committed(2, epoch=2),
)  # fmt: skip
"""Two groups of zero variance, 12 tokens sampled; g000002 was counted as decided with the first step."""


def gap(version: int, cell: str = "c1", largest: float = 2e-6, mean: float = 1e-7, tokens: int = 64, kept: int = 0) -> ProbeGap:
    return ProbeGap(cell=cell, version=version, tokens=tokens, gap_max=largest, gap_mean=mean, kept_tokens=kept)


def put(log: MemoryLog, events: Iterable[Event], start: int = 0) -> None:
    """One a second; ids are those of the first run of the story: the topic and a number."""
    for event in events:
        number = sum(len(records) for records in log.partitions(event.TOPIC))
        log.append(event, id=f"{event.TOPIC}-{number}", at=(start + number) * SECOND).result()


def the_run() -> MemoryLog:
    log = MemoryLog(run="r")
    put(log, (*TREES, *DECISIONS, *LEDGER))
    return log


def records(log: MemoryLog, *topics: str) -> list[Recorded]:
    return [record for topic in topics or TOPICS for record in log.read(topic)]
