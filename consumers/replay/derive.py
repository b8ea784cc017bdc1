"""Micro-steps derived a second time, from the model calls and the admitted groups on the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gyre_engine.batching.step_inputs import step_inputs
from gyre_engine.events import Event
from gyre_engine.events.calls import ModelCall, ProxyOwns
from gyre_engine.events.codec import pack, to_fields
from gyre_engine.events.training import GroupAdmitted, MicroStep
from gyre_engine.training.history import CommittedStep
from gyre_engine.training.merge import ReplayDiverged


def calls_by_execution(events: Iterable[Event], wanted: set[str]) -> dict[str, list[ModelCall]]:
    """The calls of the wanted executions in log order, those of superseded owners left out (log-rules, 9)."""
    calls: dict[str, list[ModelCall]] = {}
    epochs: dict[str, int] = {}
    for event in events:
        if isinstance(event, ProxyOwns) and event.execution in wanted:
            epochs[event.execution] = max(event.owner_epoch, epochs.get(event.execution, 0))
        elif isinstance(event, ModelCall) and event.execution in wanted:
            ruled = event.owner_epoch >= epochs.get(event.execution, 0)
            # A record that stands twice is taken once where the calls are assembled.
            calls.setdefault(event.execution, []).extend([event] if ruled else [])
    return calls


def check_micro_steps(
    step: CommittedStep,
    groups: Mapping[str, GroupAdmitted],
    calls: Mapping[str, list[ModelCall]],
    logged: Mapping[str, MicroStep],
    *,
    max_tokens: int,
    context: int,
    aggregate: str,
    config_hash: str,
) -> int:
    """Derive the step's micro-steps again; how many agree. Raises ReplayDiverged naming the first that does not."""
    number = step.committed.step
    admitted = [_group(groups, name, number) for name in step.opened.groups]
    derived = step_inputs(
        number, admitted, calls, max_tokens=max_tokens, context=context, aggregate=aggregate, config_hash=config_hash
    )
    names = tuple(m.micro_step for m in derived.micro_steps)
    if names != step.opened.micro_steps:
        raise ReplayDiverged(
            f"step {number}: the log opened {len(step.opened.micro_steps)} micro-steps, its calls give {len(names)}"
        )
    for event in derived.micro_steps:
        if pack(to_fields(event)) != pack(to_fields(logged[event.micro_step])):
            raise ReplayDiverged(f"step {number}: micro-step {event.index} on the log is not what its model calls give")
    return len(names)


def _group(groups: Mapping[str, GroupAdmitted], name: str, step: int) -> GroupAdmitted:
    if name not in groups:
        raise ReplayDiverged(f"step {step}: group {name} was trained and was never admitted on the log")
    return groups[name]
