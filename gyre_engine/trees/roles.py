"""Roles, inferred from structure (learning.md, 5): which calls are the agent's own, and what the others are.

A role that a rule of the config told stands. No harness is named here. What is looked at: the shape of a call (its system text and
tools), whether it offered tools, how many messages it had, where it hangs, and what came after it.

- *main*: the shape of the first call that offered tools (where none did: the shape with the most calls, the earliest
  of equals), in whatever context it stands, so also in a new context after a compaction.
- *summary*: a call without tools over the context of an agent: it extends tokens that the agent sampled, or it repeats
  at least as many messages as the agent's latest call had, after the agent's first answer. It takes the agent's class.
- *sub-agent*: another shape with tools, or without tools but with several turns in one context.
- *side*: any other call without tools: one turn on a root of its own.
- *abandoned*: the same prompt was sampled again and no later context goes on from this answer. What may not be trained on (another
  model's answer is context) makes no answer of the policy abandoned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gyre_engine.events.calls import Role
from gyre_engine.trees.facts import CallFacts

_SUMMARY = {
    Role.MAIN: Role.MAIN_SUMMARY,
    Role.SUB_AGENT: Role.SUB_AGENT_SUMMARY,
    Role.MAIN_SUMMARY: Role.MAIN_SUMMARY,
    Role.SUB_AGENT_SUMMARY: Role.SUB_AGENT_SUMMARY,
}


def infer_roles(calls: Sequence[CallFacts]) -> tuple[Role, ...]:
    """The role of each call of one closed execution, in the order of the calls."""
    if not calls:
        return ()
    place = {call.call: index for index, call in enumerate(calls)}
    twins = _twins(calls, place)
    goes_on = _continues(calls, place, twins)
    turning = {calls[index].shape for index, before in goes_on.items() if calls[index].shape == calls[before].shape}
    main = _main_shape(calls)
    roles: list[Role] = []
    for index in range(len(calls)):
        roles.append(calls[index].role or _role(calls, roles, goes_on.get(index), index, main, turning))
    for index in _abandoned(calls, twins, set(goes_on.values())):
        if roles[index] is not Role.SIDE and calls[index].role is None:
            roles[index] = Role.ABANDONED
    return tuple(roles)


def _main_shape(calls: Sequence[CallFacts]) -> str:
    with_tools = next((call.shape for call in calls if call.tools), None)
    if with_tools is not None:
        return with_tools
    return Counter(call.shape for call in calls).most_common(1)[0][0]


def _role(
    calls: Sequence[CallFacts], roles: Sequence[Role], before: int | None, index: int, main: str, turning: set[str]
) -> Role:
    call = calls[index]
    if call.shape == main:
        return Role.MAIN
    if call.tools:
        return Role.SUB_AGENT
    if before is not None and roles[before] in _SUMMARY and calls[before].shape != call.shape:
        return _SUMMARY[roles[before]]
    known = next((earlier for earlier in range(index) if calls[earlier].shape == call.shape), None)
    if known is not None and roles[known] is Role.SUB_AGENT:
        return Role.SUB_AGENT
    over = _repeated(calls, roles, index)
    if over is not None:
        return over
    return Role.SUB_AGENT if call.shape in turning else Role.SIDE


def _repeated(calls: Sequence[CallFacts], roles: Sequence[Role], index: int) -> Role | None:
    """The summary class where the call repeats the messages of the latest agent call, one of its answers among them."""
    for earlier in range(index - 1, -1, -1):
        if roles[earlier] in (Role.MAIN, Role.SUB_AGENT):
            first = next(c.messages for c in calls if c.shape == calls[earlier].shape)
            enough = calls[index].messages >= max(calls[earlier].messages, first + 2)
            return _SUMMARY[roles[earlier]] if enough else None
    return None


Prompt = tuple[int, int]
"""(call, length): the first `length` tokens of that call's path."""


def _prompt(calls: Sequence[CallFacts], place: Mapping[str, int], index: int) -> Prompt:
    """Calls with no input of their own have the prompt at which they are cut from their parent."""
    call = calls[index]
    return (
        (place[call.parent], call.cut) if call.new_input_tokens == 0 and call.parent is not None else (index, call.output_start)
    )


def _twins(calls: Sequence[CallFacts], place: Mapping[str, int]) -> dict[Prompt, list[int]]:
    """Calls by their prompt."""
    twins: dict[Prompt, list[int]] = {}
    for index in range(len(calls)):
        twins.setdefault(_prompt(calls, place, index), []).append(index)
    return twins


def _continues(calls: Sequence[CallFacts], place: Mapping[str, int], twins: Mapping[Prompt, Sequence[int]]) -> dict[int, int]:
    """Which earlier call each call goes on from: by its sampled tokens, or rewritten from the very first of them."""
    before: dict[int, int] = {}
    for index, call in enumerate(calls):
        if call.parent is None:
            continue
        parent = place[call.parent]
        if call.cut > calls[parent].output_start:
            before[index] = parent
        elif call.cut == calls[parent].output_start and call.new_input_tokens:
            before[index] = max(twin for twin in twins[_prompt(calls, place, parent)] if twin < index)
    return before


def _abandoned(calls: Sequence[CallFacts], twins: Mapping[Prompt, Sequence[int]], continued: set[int]) -> list[int]:
    """Calls whose prompt was sampled more than once and whose answer nothing goes on from; the last where nothing
    does.
    """
    found: list[int] = []
    for same in twins.values():
        own = [index for index in same if calls[index].trainable]
        kept = {*_kept(same, continued), *_kept(own, continued)}
        found.extend(index for index in same if index not in kept)
    return sorted(found)


def _kept(same: Sequence[int], continued: set[int]) -> Sequence[int]:
    """Of calls with one prompt those that something goes on from, else the last."""
    return [index for index in same if index in continued] or same[-1:]
