"""The figures of a report by the names under which Prometheus, TensorBoard and W&B show them. docs/metrics.md comes from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gyre_engine.events.reports import StepReported

Value = float | int | None
"""None: not measured in this step; nothing is shown."""


@dataclass(frozen=True, slots=True)
class Family:
    """A figure, or one for each value of `label`.

    name:  `group/name`; Prometheus calls it gyre_group_name
    of:    field of a report, or what makes the values by label of one; what is None is not shown
    """

    name: str
    unit: str
    formula: str
    source: str
    of: str | Callable[[StepReported], dict[str, Value]]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a report."""

    family: Family
    value: float
    at: str = ""
    """The label's value."""

    @property
    def tag(self) -> str:
        """Its name where there are no labels: TensorBoard, W&B."""
        return f"{self.family.name}/{self.at}" if self.family.label else self.family.name


def figures(report: StepReported) -> Iterator[Figure]:
    """Every figure that the report has."""
    for family in FAMILIES:
        found = family.of(report) if callable(family.of) else getattr(report, family.of)
        for at, value in (found if isinstance(found, dict) else {"": found}).items():
            if value is not None:
                yield Figure(family, float(value), at)


def _members(name: str) -> Callable[[StepReported], dict[str, Value]]:
    return lambda report: {member.cell: getattr(member, name) for member in report.members}


def _drift(name: str) -> Callable[[StepReported], dict[str, Value]]:
    return lambda report: {str(drift.staleness): getattr(drift, name) for drift in report.drift}


COMMITTED, SEALED, OPENED = "`step-committed`", "`sealed`", "`step-opened`"
ADMITTED, TREES = "`group-admitted`", "`tree-closed`"

FAMILIES: tuple[Family, ...] = (
    Family("loss/total", "", "policy + KL + entropy part, summed over trained tokens, / the step's divisor", COMMITTED, "loss"),
    Family("loss/policy", "", "the policy loss's part of it (`loss.name`)", SEALED, "policy_loss"),
    Family("loss/kl", "", "loss.kl x estimates of KL(current, reference), as they stand in it", SEALED, "kl_loss"),
    Family("loss/entropy", "", "- loss.entropy x entropy, as it stands in it", SEALED, "entropy_loss"),
    Family("optimizer/grad_norm", "", "norm of the merged gradient / divisor, before clipping", COMMITTED, "grad_norm"),
    Family("optimizer/lr", "", "learning rate of the update", COMMITTED, "lr"),
    Family("optimizer/skipped", "0 or 1", "1: the gradient was not finite and the weights stayed", COMMITTED, "skipped"),
    Family("policy/entropy", "nats a token", "mean of - sum p log p over the vocabulary, over the trained tokens", SEALED, "entropy"),
    Family("policy/kl", "nats a token", "mean of r - 1 - log r: estimates KL(behaviour, current)", SEALED, "kl"),
    Family("policy/reference_kl", "nats a token", "mean of the estimates (`loss.kl_estimator`)", SEALED, "reference_kl"),
    Family("policy/clip_fraction", "share", "trained tokens on which the clip acted / trained tokens", SEALED, "clip_fraction"),
    Family("ratio/max", "", "largest importance weight r = exp(current - behaviour)", SEALED, "ratio_max"),
    Family("ratio/tail", "share", "trained tokens with r above 2, 5, 10, or below 0.5, 0.2, 0.1 / trained tokens", SEALED,
           "ratio_tails", "bound"),
    Family("ratio/tail_tokens", "tokens", "the same as counts", SEALED, "ratio_tail_tokens", "bound"),
    Family("drift/tokens", "tokens", "trained tokens by staleness (version trained on - version sampled with)", SEALED,
           _drift("tokens"), "staleness"),
    Family("drift/ratio_mean", "", "mean r by staleness", SEALED, _drift("ratio_mean"), "staleness"),
    Family("drift/ratio_max", "", "largest r by staleness", SEALED, _drift("ratio_max"), "staleness"),
    Family("drift/log_ratio_mean", "nats", "mean |log r| by staleness", SEALED,
           _drift("log_ratio_mean"), "staleness"),
    Family("gap/max", "nats", "largest |engine - trainer| of a probe's log-probabilities at one version, over cells", "`probe-gap`",
           "gap_max"),
    Family("gap/mean", "nats", "mean of the same, over tokens and cells", "`probe-gap`", "gap_mean"),
    Family("gap/version", "version", "the newest version at which a gap was known", "`probe-gap`", "gap_version"),
    Family("gap/cells", "cells", "how many had measured it", "`probe-gap`", "gap_cells"),
    Family("tokens/trained", "tokens", "tokens with a gradient", SEALED, "trained_tokens"),
    Family("tokens/packed", "tokens", "tokens computed: each shared prefix once, but where a tree was split", SEALED, "packed_tokens"),
    Family("tokens/sampled", "tokens", "output of all policy calls of those executions of the step's groups whose trees were closed "
           "when admission decided the group", f"{ADMITTED}, {TREES}", "sampled_tokens"),
    Family("tokens/delivered", "tokens", "of these, those that stand in the tree", f"{ADMITTED}, {TREES}", "delivered_tokens"),
    Family("tokens/delivered_fraction", "share", "delivered / sampled", f"{ADMITTED}, {TREES}", "delivered"),
    Family("tokens/trained_fraction", "share", "trained / sampled", f"{SEALED}, {ADMITTED}, {TREES}", "trained"),
    Family("tokens/path", "tokens", "paths of the selected trajectories from root to leaf, each whole", f"{ADMITTED}, {TREES}",
           "path_tokens"),
    Family("tokens/dedup_ratio", "", "path / packed", f"{ADMITTED}, {TREES}, {SEALED}", "dedup_ratio"),
    Family("groups/step", "groups", "groups of the step", OPENED, "step_groups"),
    Family("groups/decided", "groups", "decided since the last step: on `trajectories` up to the last that this step needed", ADMITTED,
           "decided_groups"),
    Family("groups/zero_variance", "groups", "of the decided ones, those whose rewards are all the same", ADMITTED,
           "zero_variance_groups"),
    Family("groups/untrained", "groups", "of the decided ones, those that do not train", ADMITTED, "untrained_groups", "reason"),
    Family("reward/mean", "reward", "over the scored executions of the step's groups", ADMITTED, "reward_mean"),
    Family("reward/deviation", "reward", "deviation of the same (of the population)", ADMITTED, "reward_deviation"),
    Family("reward/min", "reward", "smallest of the same", ADMITTED, "reward_min"),
    Family("reward/max", "reward", "largest of the same", ADMITTED, "reward_max"),
    Family("executions/scored", "executions", "in the baseline of the step's groups", ADMITTED, "scored_executions"),
    Family("executions/discarded", "executions", "discarded attempts of the step's groups", ADMITTED, "discarded_executions"),
    Family("executions/failed", "executions", "attempts whose evaluation failed for good", ADMITTED, "failed_executions"),
    Family("executions/left_out", "executions", "attempts that do not count, discarded and failed among them", ADMITTED,
           "left_out_executions", "reason"),
    Family("executions/trained", "executions", "that contribute to the gradient", OPENED, "trained_executions"),
    Family("staleness/max", "versions", "most versions that a trained token was behind", OPENED, "staleness_max"),
    Family("staleness/mean", "versions", "mean over the trained tokens", OPENED, "staleness_mean"),
    Family("time/step", "s", "from the step's opening to its commit", f"{OPENED}, {COMMITTED}", "seconds"),
    Family("time/data", "s", "from when the core owed nothing any more until the step's groups and their calls were there", COMMITTED,
           "data_s"),
    Family("time/burst", "s", "from then until its cell had the role of training and the scheduler let the burst begin", COMMITTED,
           "burst_s"),
    Family("time/prepare", "s", "from then until the step had opened: packing, scoring with the reference, the log", COMMITTED,
           "prepare_s"),
    Family("time/compute", "s", "forward and backward of the member's micro-steps", SEALED, _members("compute_s"), "cell"),
    Family("time/wait", "s", "the rest of its time in the step: for micro-steps, for the log; the core also for seals",
           f"{SEALED}, {COMMITTED}", _members("wait_s"), "cell"),
    Family("time/merge", "s", "copying and hashing its gradients; the core also fetching, adding, the update, the export",
           f"{SEALED}, {COMMITTED}", _members("merge_s"), "cell"),
    Family("time/publish", "s", "a satellite taking the step's weights; the core putting them out before the step",
           f"{SEALED}, {COMMITTED}", _members("publish_s"), "cell"),
    Family("members/micro_steps", "micro-steps", "computed by the member", SEALED, _members("micro_steps"), "cell"),
    Family("members/trained_tokens", "tokens", "of them", SEALED, _members("trained_tokens"), "cell"),
    Family("members/released", "members", "released in the middle of the step: their work was done again", "`member-released`",
           "released_members"),
)  # fmt: skip
