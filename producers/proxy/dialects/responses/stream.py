"""One streamed answer in the Responses dialect.

promises  every event has its `event:` line and the next sequence number; an item is finished, and a call sent at all, only once the
          record stands; the last event is response.completed, response.incomplete or response.failed
"""

from __future__ import annotations

from typing import Any

import orjson

from producers.proxy.dialects.responses.output import begun, call_item, channels, ended, part, response, text_item
from producers.proxy.dialects.responses.tools import Tools
from producers.proxy.exchange import Answer, Ask, Channel, Piece, ProxyError


class ResponsesStream:
    """Events of one answer."""

    def __init__(self, ask: Ask, call: str, created: int) -> None:
        self._id = call
        self._base = response(ask, call, created)
        self._tools: Tools = ask.memo
        self._number = 0
        self._open: list[Channel] = []

    def opening(self) -> bytes:
        """The response has begun."""
        return self._about(self._base, "created") + self._about(self._base, "in_progress")

    def delta(self, piece: Piece) -> bytes:
        """Text or reasoning, in an item of its own."""
        begin = b"" if piece.channel in self._open else self._begin(piece.channel)
        kind = "reasoning_summary_text" if piece.channel is Channel.REASONING else "output_text"
        return begin + self._text(f"{kind}.delta", piece.channel, delta=piece.text)

    def keep_alive(self) -> bytes:
        """The response is in progress: an event, since comments keep not every client."""
        return self._about(self._base, "in_progress")

    def closing(self, answer: Answer) -> bytes:
        """The items are finished, calls come whole, the response ends."""
        new = [channel for channel in channels(answer) if channel not in self._open]
        begin = [self._begin(channel) for channel in new]
        output = [text_item(channel, self._id, answer) for channel in self._open]
        texts = [self._finish(channel, output[at]) for at, channel in enumerate(self._open)]
        asked = [call_item(call, self._id, at, self._tools) for at, call in enumerate(answer.calls)]
        calls = [self._call(item, len(output) + at) for at, item in enumerate(asked)]
        whole = ended(self._base, answer, output + asked)
        return b"".join([*begin, *texts, *calls, self._about(whole, whole["status"])])

    def broken(self, problem: ProxyError) -> bytes:
        """The response has failed. Where asking again may help, in the words that clients wait by."""
        code = problem.code if problem.status < 500 else "server_error"
        message = problem.message
        if problem.retry_after is not None:
            code, message = "rate_limit_exceeded", f"{message}. Please try again in {problem.retry_after}s."
        return self._about({**self._base, "status": "failed", "error": {"code": code, "message": message}}, "failed")

    def _begin(self, channel: Channel) -> bytes:
        """An item for a channel, with its one part."""
        self._open.append(channel)
        at = len(self._open) - 1
        item = self._event("response.output_item.added", output_index=at, item=begun(channel, self._id))
        kind = "reasoning_summary_part" if channel is Channel.REASONING else "content_part"
        return item + self._text(f"{kind}.added", channel, part=part(channel, ""))

    def _finish(self, channel: Channel, item: dict[str, Any]) -> bytes:
        thinks = channel is Channel.REASONING
        whole = item["summary" if thinks else "content"][0]
        text = self._text("reasoning_summary_text.done" if thinks else "output_text.done", channel, text=whole["text"])
        done = self._text("reasoning_summary_part.done" if thinks else "content_part.done", channel, part=whole)
        return text + done + self._event("response.output_item.done", output_index=self._open.index(channel), item=item)

    def _text(self, kind: str, channel: Channel, **fields: Any) -> bytes:
        """An event about the one part of a channel's item."""
        thinks = channel is Channel.REASONING
        place = {"summary_index" if thinks else "content_index": 0, "output_index": self._open.index(channel)}
        logprobs: dict[str, Any] = {"logprobs": []} if kind.startswith("output_text") else {}
        return self._event(f"response.{kind}", item_id=begun(channel, self._id)["id"], **place, **fields, **logprobs)

    def _call(self, item: dict[str, Any], at: int) -> bytes:
        custom = item["type"] == "custom_tool_call"
        said = "input" if custom else "arguments"
        kind = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
        place, name = {"item_id": item["id"], "output_index": at}, {} if custom else {"name": item["name"]}
        begin = self._event("response.output_item.added", output_index=at, item={**item, "status": "in_progress", said: ""})
        delta = self._event(f"{kind}.delta", **place, delta=item[said])
        done = self._event(f"{kind}.done", **place, **name, **{said: item[said]})
        return begin + delta + done + self._event("response.output_item.done", output_index=at, item=item)

    def _about(self, whole: dict[str, Any], what: str) -> bytes:
        return self._event(f"response.{what}", response=whole)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
