"""The tokenizer of a model folder, over the `tokenizers` library alone: nothing here loads transformers or torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer


class TokenizerUnreadable(ValueError):
    """The folder holds no tokenizer.json that can be read; the text says what to do."""


class EncodedTooMuch(Exception):
    """More tokens than `ChatTokenizer.at_most` allows; `tokens` of them stand for `chars` characters."""

    def __init__(self, tokens: int, chars: int) -> None:
        super().__init__(f"{chars} characters are {tokens} tokens already")
        self.tokens = tokens
        self.chars = chars


PIECE = 1 << 16
"""Characters that are encoded before anybody asks whether that was too much."""
GUARD = "\ufdd0"
"""A code point that is no character: it stands inside a marker's text that is to stay text."""


class ChatTokenizer:
    """What `renderers` asks of a tokenizer, and the bytes of each token (an id alone may be half a character).

    A message may quote the text of a control token. `guarded` marks such places, and `encode` gives them the ids of plain text.
    """

    unk_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer, name: str, eos: str | None = None) -> None:
        self.backend = tokenizer
        self.name_or_path = name
        self.eos_token = eos
        self.eos_token_id: int | None = tokenizer.token_to_id(eos) if eos else None
        added = tokenizer.get_added_tokens_decoder()
        self._added = {id: token.content for id, token in added.items()}
        self._id_of = {text: id for id, text in self._added.items()}
        self._markers = _any_of(token.content for token in added.values())
        self._special = _any_of(token.content for token in added.values() if token.special)
        self._plain: Tokenizer | None = None
        self._byte_level = "ByteLevel" in _kinds(orjson.loads(tokenizer.to_str()).get("decoder"))
        self._bytes: dict[int, bytes] = {}
        self._meter: _Meter | None = None

    @classmethod
    def load(cls, folder: Path) -> ChatTokenizer:
        """The tokenizer of a Hugging Face folder (tokenizer.json, and tokenizer_config.json where there is one)."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise TokenizerUnreadable(f"{folder} has no tokenizer.json: give the proxy the folder of a Hugging Face model")
        config = folder / "tokenizer_config.json"
        eos = orjson.loads(config.read_bytes()).get("eos_token") if config.is_file() else None
        text = eos.get("content") if isinstance(eos, dict) else eos
        return cls(Tokenizer.from_file(str(file)), str(folder), text)

    @contextmanager
    def at_most(self, tokens: int) -> Iterator[None]:
        """Inside, `encode` raises EncodedTooMuch once it has found more tokens, before it has encoded much more text."""
        self._meter = _Meter(tokens)
        try:
            yield
        finally:
            self._meter = None

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """The ids of a text, without tokens of the tokenizer's own around it. Raises EncodedTooMuch inside `at_most`."""
        if self._meter is None:
            return self.ids(text)
        if len(text) <= PIECE:
            ids = self.ids(text)
            self._meter.add(len(text), len(ids))
            return ids
        for at in range(0, len(text), PIECE):
            piece = text[at : at + PIECE]
            self._meter.add(len(piece), len(self.ids(piece)))
        return self.ids(text)

    def ids(self, text: str) -> list[int]:
        """The ids of a text of any length."""
        if GUARD in text:
            return self._encode_guarded(text)
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def guarded(self, text: str, *, special_only: bool = False) -> str:
        """The text with a guard inside each marker that it quotes; special_only: markers of thinking and tools stay what they are."""
        text = text.replace(GUARD, "\ufffd")
        markers = self._special if special_only else self._markers
        return text if markers is None else markers.sub(lambda found: found[0][0] + GUARD + found[0][1:], text)

    def _encode_guarded(self, text: str) -> list[int]:
        """As the tokenizer does: markers first, then the text between them; what is guarded is such text."""
        if self._plain is None:
            self._plain = _without_markers(self.backend)
        ids, at = [], 0
        for found in self._markers.finditer(text) if self._markers else ():
            ids += self._plain.encode(text[at : found.start()].replace(GUARD, ""), add_special_tokens=False).ids
            ids += [self._id_of[found[0]]]
            at = found.end()
        return [*ids, *self._plain.encode(text[at:].replace(GUARD, ""), add_special_tokens=False).ids]

    def decode(self, token_ids: Any, *_: Any, skip_special_tokens: bool = False, **__: Any) -> str:
        """The text of ids; bytes that are no character become U+FFFD."""
        return str(self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token's text, or of each in a list; None where there is none."""
        if isinstance(tokens, str):
            return self.backend.token_to_id(tokens)
        return [self.backend.token_to_id(token) for token in tokens]

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that a token stands for; empty for an unknown id."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        text = self.backend.id_to_token(token_id)
        if text is None:
            return b""
        if self._byte_level:
            return bytes(_BYTE_OF[char] for char in text if char in _BYTE_OF)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("\u2581", " ").encode()


class _Meter:
    """What was encoded so far, and how much may be."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tokens = self._chars = 0

    def add(self, chars: int, tokens: int) -> None:
        self._chars += chars
        self._tokens += tokens
        if self._tokens > self._most:
            raise EncodedTooMuch(self._tokens, self._chars)


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """What finds any of the texts, the longest first."""
    found = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, found))) if found else None


def _without_markers(tokenizer: Tokenizer) -> Tokenizer:
    """The same, knowing no marker."""
    fields = orjson.loads(tokenizer.to_str())
    return Tokenizer.from_str(orjson.dumps({**fields, "added_tokens": [], "post_processor": None}).decode())


def _kinds(decoder: Any) -> set[str]:
    """The types of a decoder and of those inside it."""
    if not isinstance(decoder, dict):
        return set()
    inner = decoder.get("decoders") or []
    return {str(decoder.get("type")), *(kind for part in inner for kind in _kinds(part))}


def _alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: printable bytes as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _alphabet()
