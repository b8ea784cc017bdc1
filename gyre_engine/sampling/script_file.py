"""A scripted engine's answers in a TOML file, each with what the prompt must look like for it.

    [[answer]]
    turn = 0                       # the prompt holds this many answers already; left out: any number
    contains = ["Write 42"]        # each of these stands in the prompt
    lacks = ["<tools>"]            # none of these does
    last = ["exit code 1"]         # each of these stands in what came after the latest answer
    text = "I read it first."      # what the model says, in its own chat format, without the stop token
    piece = 4                      # ids a chunk; left out: all at once

The first answer that fits is played. Which one that is follows from the prompt alone, so every cell gives the same answer, after a
restart too, and a call that was cut off goes on where it was. The last answer has no conditions: every call has an answer.
A file may name the line that opens an answer in the model's chat format: `header = "<|im_start|>assistant\\n"` is the default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre_engine.sampling.port import GenerateRequest
from gyre_engine.sampling.scripted import Script

HEADER = "<|im_start|>assistant\n"
_KEYS = frozenset({"text", "turn", "contains", "lacks", "last", "piece"})


class ScriptUnreadable(ValueError):
    """A script file that cannot be played; the text names the file, the answer and the remedy."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and its conditions; see above."""

    text: str
    turn: int | None = None
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    piece: int | None = None

    @property
    def conditional(self) -> bool:
        return self.turn is not None or bool(self.contains or self.lacks or self.last)

    def fits(self, turn: int, prompt: str, latest: str) -> bool:
        """Whether it answers a prompt of `turn` earlier answers, `latest` being what came after the latest of them."""
        return (
            self.turn in (None, turn)
            and all(text in prompt for text in self.contains)
            and not any(text in prompt for text in self.lacks)
            and all(text in latest for text in self.last)
        )


class ScriptFile:
    """Plays answers by the prompt: the `play` of a ScriptedEngine. tokenizer: a `tokenizers.Tokenizer`."""

    def __init__(self, answers: Sequence[Answer], tokenizer: Any, *, header: str = HEADER) -> None:
        if not answers or answers[-1].conditional:
            raise ScriptUnreadable("the last [[answer]] must have no conditions: it answers whatever no other answer fits")
        self._answers, self._tokenizer = tuple(answers), tokenizer
        self._header = tokenizer.encode(header, add_special_tokens=False).ids

    def __call__(self, request: GenerateRequest) -> Script:
        """The answer to a prompt, or what is left of it where the prompt ends in its beginning."""
        prompt = [int(token) for token in request.input_ids]
        ends = self._ends_of_headers(prompt)
        begun = prompt[ends[-1] :] if ends else []
        latest = self._tokenizer.decode(prompt[ends[-2] if len(ends) > 1 else 0 :], skip_special_tokens=False)
        whole = self._tokenizer.decode(prompt, skip_special_tokens=False)
        answer = next(a for a in self._answers if a.fits(max(len(ends) - 1, 0), whole, latest))
        ids = (*self._tokenizer.encode(answer.text, add_special_tokens=False).ids, *request.params.stop_token_ids[:1])
        return Script(ids[len(begun) :] if tuple(begun) == ids[: len(begun)] else ids, piece=answer.piece)

    def _ends_of_headers(self, prompt: list[int]) -> list[int]:
        size, first = len(self._header), self._header[0]
        starts = [at for at, token in enumerate(prompt) if token == first]
        return [at + size for at in starts if prompt[at : at + size] == self._header]


def read_script(path: str | Path, tokenizer: Any) -> ScriptFile:
    """The script in a TOML file. Raises ScriptUnreadable."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScriptUnreadable(f"cannot read the script {path}: {error}") from error
    try:
        answers = [_answer(entry, number) for number, entry in enumerate(document.get("answer", []), 1)]
        return ScriptFile(answers, tokenizer, header=document.get("header", HEADER))
    except ScriptUnreadable as error:
        raise ScriptUnreadable(f"the script {path}: {error}") from error


def _answer(entry: Any, number: int) -> Answer:
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
        raise ScriptUnreadable(f"[[answer]] {number} has no text: give what the model says")
    if unknown := sorted(entry.keys() - _KEYS):
        raise ScriptUnreadable(f"[[answer]] {number} has no key {unknown[0]!r}: there are {', '.join(sorted(_KEYS))}")
    words = {key: _texts(entry.get(key, []), key, number) for key in ("contains", "lacks", "last")}
    counts = {key: _count(entry.get(key), key, number) for key in ("turn", "piece")}
    return Answer(entry["text"].strip("\n"), turn=counts["turn"], piece=counts["piece"] or None, **words)


def _texts(value: Any, key: str, number: int) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ScriptUnreadable(f"[[answer]] {number}: {key} must be a text or a list of texts")
    return tuple(found)


def _count(value: Any, key: str, number: int) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ScriptUnreadable(f"[[answer]] {number}: {key} must be a whole number of at least 0")
    return value
