"""Sampled ids to text as they come: whole characters only, up to where the model begins to call tools.

What is sent early is a prefix of what the parser says in the end: blanks at the edges are held back, and so is
everything after the marker of a tool call. For formats whose markers are not known nothing is sent early.
"""

from __future__ import annotations

import codecs

from producers.proxy.exchange import Channel, Piece
from producers.proxy.rendering import Parsed, Rendering


class TextStream:
    """The text of one completion, piece by piece."""

    def __init__(self, rendering: Rendering, prompt_tail: list[int]) -> None:
        self._rendering = rendering
        self._open = rendering.tool_open is not None
        self._channel = Channel.REASONING if _thinks(rendering, prompt_tail) else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.sent = {Channel.TEXT: "", Channel.REASONING: ""}

    def feed(self, ids: tuple[int, ...]) -> list[Piece]:
        """What can be sent after these ids."""
        pieces: list[Piece] = []
        for token in ids:
            if self._open:
                pieces += self._token(token)
        return pieces

    def rest(self, parsed: Parsed) -> list[Piece]:
        """What is still to be sent of the whole answer."""
        wanted = {Channel.REASONING: parsed.reasoning, Channel.TEXT: parsed.text}
        return [
            Piece(channel, text[len(self.sent[channel]) :])
            for channel, text in wanted.items()
            if text.startswith(self.sent[channel]) and len(text) > len(self.sent[channel])
        ]

    def _token(self, token: int) -> list[Piece]:
        rendering = self._rendering
        if token == rendering.tool_open or token in rendering.stop_ids:
            self._open = False
            return []
        if self._channel is None and token == rendering.think_open:
            self._channel = Channel.REASONING
            return []
        if self._channel is Channel.REASONING and token == rendering.think_close:
            self._channel, self._held = Channel.TEXT, ""
            self._decoder.reset()
            return []
        return self._text(self._decoder.decode(rendering.tokenizer.bytes_of(token)))

    def _text(self, text: str) -> list[Piece]:
        if self._channel is None:
            if not text.strip():
                return []
            self._channel = Channel.TEXT
        before = self.sent[self._channel]
        self._held += text
        ready = self._held.rstrip() if before else self._held.strip()
        if not ready:
            return []
        self._held = self._held[self._held.index(ready) + len(ready) :]
        self.sent[self._channel] = before + ready
        return [Piece(self._channel, ready)]


def _thinks(rendering: Rendering, prompt_tail: list[int]) -> bool:
    """Whether the prompt ends inside a thinking block."""
    for token in reversed(prompt_tail):
        if token in rendering.stop_ids or token == rendering.think_close:
            return False
        if token == rendering.think_open:
            return True
    return False
