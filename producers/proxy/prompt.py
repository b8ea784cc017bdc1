"""The prompt that a request makes: what is known of its history stays byte for byte, only the rest is rendered.

promises  the ids of an answer that it goes on from stand in it as they were sampled, or the call says that it was rewritten
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gyre_engine.events.calls import Continuity, InputSpan
from gyre_engine.events.codec import Int32
from gyre_engine.trees.conversation import Author, Message
from gyre_engine.trees.path import EMPTY, Cut, Stretch
from producers.proxy.exchange import Ask
from producers.proxy.execution import Execution
from producers.proxy.rendering import Rendered, Rendering


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a call asks the engine, as a delta.

    at:    the known prefix
    new:   int32[n]  what follows it
    ids:   int32[m]  the whole prompt
    chain: hash chain of the request's messages, before the answer
    """

    at: Cut
    prefix_hash: bytes
    new: Int32
    ids: Int32
    spans: tuple[InputSpan, ...]
    continuity: Continuity
    chain: bytes
    shape: str


def prompt_for(execution: Execution, ask: Ask, rendering: Rendering) -> Prompt:
    """The prompt of a request: bridged from the answer it goes on from, else rendered anew."""
    anchor = execution.conversation.anchor(ask.messages, ask.chains)
    if anchor is not None:
        stretch = execution.paths.stretches[anchor.call]
        new = ask.messages[anchor.index + 1 :]
        tail, output = tail_of(execution, stretch, rendering), stretch.output.tolist()
        bridged = rendering.bridge(tail, output, new, ask.tools, thinks=anchor.call in execution.thinks_at)
        if bridged is not None:
            base = execution.paths.cut(anchor.call, stretch.end)
            return _prompt(execution, ask, base, bridged, Continuity.BRIDGED)
    return _anew(execution, ask, rendering, anchor.call if anchor else None)


def _anew(execution: Execution, ask: Ask, rendering: Rendering, anchor: str | None) -> Prompt:
    """Rendered anew. It still counts as bridged where every token of the answer it goes on from stands in its place."""
    origins = execution.conversation.sampled(ask.messages, ask.chains)
    messages = [_restored(execution, rendering, message, origins.get(at)) for at, message in enumerate(ask.messages)]
    sampled = {at: execution.paths.stretches[call].output.tolist() for at, call in origins.items()}
    rendered = rendering.render(messages, ask.tools, {at: ids for at, ids in sampled.items() if ids})
    ids = np.asarray(rendered.ids, dtype=np.int32)
    if anchor is not None:
        whole = Cut(anchor, execution.paths.stretches[anchor].end)
        if np.array_equal(ids[: whole.length], execution.paths.ids(whole)):
            rest = Rendered(rendered.ids[whole.length :], _from(rendered.spans, whole.length), 0)
            return _prompt(execution, ask, whole, rest, Continuity.BRIDGED)
    _, shared = execution.paths.extend(EMPTY, ids)
    if shared < max(1, rendered.head):
        return _root(ask, rendered)
    return _prompt(execution, ask, EMPTY, rendered, Continuity.REWRITTEN)


def _root(ask: Ask, rendered: Rendered) -> Prompt:
    """A context whose first message is like none before: what its header shares with others is no history."""
    ids = np.asarray(rendered.ids, dtype=np.int32)
    return Prompt(EMPTY, bytes(16), ids, ids, rendered.spans, Continuity.ROOT, ask.chains[-1], shape_of(ask))


def _prompt(execution: Execution, ask: Ask, base: Cut, rendered: Rendered, continuity: Continuity) -> Prompt:
    ids = np.asarray(rendered.ids, dtype=np.int32)
    at, taken = execution.paths.extend(base, ids)
    new = ids[taken:]
    return Prompt(
        at=at,
        prefix_hash=execution.paths.hash(at),
        new=new,
        ids=execution.paths.followed_by(at, new),
        spans=_from(rendered.spans, taken),
        continuity=continuity,
        chain=ask.chains[-1],
        shape=shape_of(ask),
    )


def tail_of(execution: Execution, stretch: Stretch, rendering: Rendering) -> list[int]:
    """The last tokens of a recorded call's prompt, as many as the renderer looks at."""
    start = 0 if rendering.tail is None else max(0, stretch.prompt_len - rendering.tail)
    cut = execution.paths.cut(stretch.call, stretch.prompt_len) if stretch.prompt_len else EMPTY
    found: list[int] = execution.paths.ids(cut, start).tolist()
    return found


def _restored(execution: Execution, rendering: Rendering, message: Message, call: str | None) -> Message:
    """A turn that was sampled here, with its tool calls and reasoning as they were sampled."""
    if call is None or not (message.calls or not message.reasoning):
        return message
    stretch = execution.paths.stretches[call]
    parsed = rendering.parse(tail_of(execution, stretch, rendering), stretch.output.tolist(), [])
    originals = {original.id: original for original in parsed.tool_calls(call)}
    calls = tuple(originals.get(known.id, known) for known in message.calls)
    return replace(message, calls=calls, reasoning=message.reasoning or parsed.reasoning)


def _from(spans: Sequence[InputSpan], start: int) -> tuple[InputSpan, ...]:
    """The spans of what follows the first `start` tokens."""
    before = [span for span in spans if span.start <= start]
    first = [InputSpan(0, before[-1].provenance)] if before else []
    return tuple(first + [InputSpan(span.start - start, span.provenance) for span in spans if span.start > start])


def shape_of(ask: Ask) -> str:
    """Short hash of the system text and the tools' names: calls of one agent share it."""
    digest = hashlib.blake2b(ask.said_by(Author.SYSTEM).encode("utf-8", "replace"), digest_size=8)
    for name in sorted(_name(tool) for tool in ask.tools):
        digest.update(b"\0" + name.encode("utf-8", "replace"))
    return digest.hexdigest()


def _name(tool: Mapping[str, object]) -> str:
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, dict) else ""
