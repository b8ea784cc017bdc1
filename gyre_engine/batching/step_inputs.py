"""From admitted groups and the calls' deltas to the micro-steps of a step: logged live before it opens, derived again in a replay."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching.assemble import assemble
from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.batching.packing import pack
from gyre_engine.events import codec, derived_id
from gyre_engine.events.training import AdmittedExecution, GroupAdmitted, MicroStep
from gyre_engine.experts import table
from gyre_engine.losses.aggregates import TWO_LEVEL, divisor_share
from gyre_engine.trees.owned import OwnedCalls

DERIVATION_VERSION = 2
"""Part of every micro-step's name: raise it with what makes a micro-step of the same causes another one (then NUMERICS, too)."""
PROBE_LENGTH = 64
"""Of a fixed probe."""
_FACTOR, _STEP = 6364136223846793005, 1442695040888963407
"""Of a linear congruential generator modulo 2**64: the same ids wherever and whenever they are drawn."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How a run's selected trajectories become micro-steps; the core and a replay are told the same.

    max_tokens:   of a micro-step
    context:      of the model; a longer path is an error
    aggregate:    how a target shares its execution's advantage; `constant` is for the one of that name (`losses.aggregates`)
    config_hash:  of the run, part of what micro-steps are named
    trees:        shared prefixes once; False: separate paths (`training.model.maskable`)
    """

    max_tokens: int
    context: int
    aggregate: str = TWO_LEVEL
    constant: int = 0
    config_hash: str = ""
    trees: bool = True


class ReferenceScorer(Protocol):
    """Scores targets under the reference policy (learning.md, 7: its weights live in the core)."""

    def score(self, steps: Sequence[PackedMicroStep]) -> list[NDArray[np.float32]]:
        """float32[m] of each micro-step: log-probabilities of its targets at the run's temperature."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All that a step trains on. `executions`: those that contribute trained tokens; `divisor`: of their summed gradients."""

    groups: tuple[GroupAdmitted, ...]
    micro_steps: tuple[MicroStep, ...]
    executions: int
    divisor: int
    staleness_max: int
    staleness_mean: float
    reward_mean: float

    @property
    def scores(self) -> tuple[str, ...]:
        return tuple(e.score for g in self.groups for e in g.executions)


def packed(event: MicroStep) -> PackedMicroStep:
    """The pack that a micro-step event carries."""
    return PackedMicroStep(
        event.ids, event.position, event.end, event.src, event.dst, event.logprobs, event.versions, event.weight,
        event.sequence, event.executions, event.share, event.reference,
        table(event.routed_experts, len(event.ids)),
    )  # fmt: skip


def trained(groups: Sequence[GroupAdmitted]) -> list[AdmittedExecution]:
    """The executions that contribute to the gradient, in the order of the groups."""
    return [e for g in groups if g.trains for e in g.executions if e.trained_tokens]


def missing_calls(groups: Sequence[GroupAdmitted], calls: OwnedCalls) -> tuple[str, ...]:
    """Executions whose selected leaves have not been read yet."""
    return tuple(e.execution for e in trained(groups) if not calls.holds(e.execution, [t.leaf for t in e.trajectories]))


def step_inputs(
    step: int, groups: Sequence[GroupAdmitted], calls: OwnedCalls, packing: Packing, reference: ReferenceScorer | None = None
) -> StepInputs:
    """Pack the selected trajectories of `groups` for `step` (which trains at weight version step - 1).

    reference: scores the targets where the loss looks at a reference policy
    """
    executions = trained(groups)
    works = [assemble(e, calls.of(e.execution)) for e in executions]
    packs = pack(works, packing.max_tokens, context=packing.context, trees=packing.trees, aggregate=packing.aggregate)
    packs = _scored(packs, reference)
    ages = [step - 1 - int(v) for work in works for v in work.versions]
    rewards = [e.reward for g in groups for e in g.executions]
    shares = (divisor_share(packing.aggregate, e.trained_tokens, len(e.trajectories), packing.constant) for e in executions)
    return StepInputs(
        groups=tuple(groups),
        micro_steps=tuple(_event(step, index, p, groups, packing.config_hash) for index, p in enumerate(packs)),
        executions=len(executions),
        divisor=sum(shares),
        staleness_max=max(ages, default=0),
        staleness_mean=sum(ages) / len(ages) if ages else 0.0,
        reward_mean=sum(rewards) / len(rewards) if rewards else 0.0,
    )


def _scored(packs: list[PackedMicroStep], reference: ReferenceScorer | None) -> list[PackedMicroStep]:
    if reference is None or not packs:
        return packs
    return [replace(p, reference=found) for p, found in zip(packs, reference.score(packs), strict=True)]


def probe(micro_steps: Sequence[MicroStep], limit: int = 256) -> list[int]:
    """Ids of one recorded path, cut to `limit`: what engine and trainer both score (learning.md, 8)."""
    for event in micro_steps:
        position = event.position
        # A path is read from the first root on, as long as each token follows the one before it.
        steps = np.flatnonzero(position != np.arange(len(position)))
        length = int(steps[0]) if len(steps) else len(position)
        if length > 1:
            return [int(i) for i in event.ids[: min(length, limit)]]
    return []


def fixed_probe(vocabulary: int, context: int = PROBE_LENGTH) -> list[int]:
    """Of a version that no recorded path can probe: the initial weights, and a step in which nothing trained. Ids spread over the
    vocabulary, as many as the context takes: the same for every model of that many ids. None for none."""
    state, ids = 0, []
    for _ in range(min(PROBE_LENGTH, context) if vocabulary > 1 else 0):
        state = (state * _FACTOR + _STEP) % 2**64
        ids.append((state >> 32) * vocabulary >> 32)
    return ids


def _event(step: int, index: int, p: PackedMicroStep, groups: Sequence[GroupAdmitted], config_hash: str) -> MicroStep:
    """Its name is a hash of all that it holds: whoever has read a micro-step of this name has these bytes, whoever wrote it."""
    nameless = MicroStep(
        micro_step="", step=step, index=index, groups=tuple(g.group for g in groups), ids=p.ids, position=p.position,
        end=p.end, src=p.src, dst=p.dst, logprobs=p.logprobs, versions=p.versions, weight=p.weight, sequence=p.sequence,
        executions=p.executions, share=p.share, reference=p.reference, routed_experts=p.experts.reshape(-1),
    )  # fmt: skip
    content = hashlib.blake2b(codec.pack(codec.to_fields(nameless)), digest_size=16).hexdigest()
    name = derived_id((*nameless.groups, content), f"micro-step-of-{step}", DERIVATION_VERSION, config_hash, index)
    return replace(nameless, micro_step=name)
