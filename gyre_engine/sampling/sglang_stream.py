"""SGLang's answers, cumulative or incremental, as the port's chunks.

Ids and log-probabilities come in two lists that may each be cumulative or incremental, also in one stream; `completion_tokens` says
how many there are in all. What cannot be brought to one id with one log-probability a token is a MismatchedOutput.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gyre_engine.experts import FREE, BadRouting, Experts, Rows
from gyre_engine.sampling.port import Chunk, ContextTooLong, EngineFailed, FinishReason, GenerateRequest, MismatchedOutput

ROUTED_ROWS = "routed_rows"
"""Where servers of ours tell the experts, as the port has them."""
INPUT_TOO_LONG = re.compile(r"\((\d+) tokens?\).*?(?:context|allowed) length \((\d+) tokens?\)", re.DOTALL)
OUTPUT_TOO_LONG = re.compile(r"maximum context length of (\d+) tokens.*?(\d+) tokens from the input", re.DOTALL)

Item = TypeVar("Item")
Triples = list[list[Any]]
Span = tuple[int, int, str]


class Reading:
    """Follows one stream: how many tokens were handed on, and whether it ended."""

    def __init__(self, request: GenerateRequest, experts: Experts | None = None) -> None:
        self._request, self._experts = request, experts
        self._rid = request.rid
        self._count = 0
        self.ended = False

    def chunks(self, event: dict[str, Any]) -> list[Chunk]:
        """What an event adds, cut where the weight version changes."""
        meta = event.get("meta_info") or {}
        ids, triples = event.get("output_ids"), meta.get("output_token_logprobs")
        reason = self._reason(meta.get("finish_reason"))
        if ids is None or triples is None:
            if ids is None and triples is None and reason is FinishReason.ABORT:
                ids, triples = [], []  # aborted before it was ever scheduled
            else:
                raise MismatchedOutput(self._rid, _size(ids), _size(triples))
        new_ids, new_triples = self._new(ids, triples, meta.get("completion_tokens"))
        start, self._count = self._count, self._count + len(new_ids)
        self.ended = reason is not None
        logprobs = [nan if triple[0] is None else float(triple[0]) for triple in new_triples]  # JSON has no other word for nan
        chunks = _cut(new_ids, logprobs, _spans(meta, start, self._count), reason, int(meta.get("cached_tokens") or 0))
        if self.ended and meta.get("weight_versions"):
            # Chunks on the way name the version in use when they were sent; the spans of the end are exact.
            whole = _spans(meta, 0, self._count)
            chunks[-1] = replace(chunks[-1], weight_spans=tuple((first, version) for first, end, version in whole if end > first))
        if self.ended and self._request.routed_from is not None:
            chunks[-1] = replace(chunks[-1], routed=self._routed(meta))
        return chunks

    def _routed(self, meta: dict[str, Any]) -> bytes:
        """Our own servers' record as it is, or SGLang's: numbers of every layer, of those without experts too."""
        if ours := meta.get(ROUTED_ROWS):
            return b64decode(ours)
        theirs = b64decode(meta.get("routed_experts") or "")
        if self._experts is None or not theirs:
            return b""
        computed = len(self._request.input_ids) + self._count - 1 - (self._request.routed_from or 0)
        try:
            return routed_of_all_layers(np.frombuffer(theirs, dtype="<i4"), self._experts, computed).tobytes()
        except BadRouting as error:
            raise EngineFailed(f"request {self._rid}: {error}") from error

    def _new(self, ids: list[int], triples: Triples, total: int | None) -> tuple[list[int], Triples]:
        """The new part of both lists. Triples name the id they are about, so that they can be checked against the ids."""
        total = self._total(ids, triples) if total is None else total
        new_ids, new_triples = self._tail(ids, total), self._tail(triples, total)
        if new_ids is None or new_triples is None or [t[1] for t in new_triples] != list(new_ids):
            raise MismatchedOutput(self._rid, len(ids), len(triples))
        return list(new_ids), list(new_triples)

    def _total(self, ids: list[int], triples: Triples) -> int:
        """Without `completion_tokens`: the longer list is cumulative if it is longer than what was seen."""
        longest = max(len(ids), len(triples))
        return longest if longest > self._count else self._count + longest

    def _tail(self, items: Sequence[Item], total: int) -> Sequence[Item] | None:
        if len(items) == total:
            return items[self._count :]
        return items if len(items) == total - self._count else None

    def _reason(self, finish: dict[str, Any] | str | None) -> FinishReason | None:
        if finish is None:
            return None
        kind = finish if isinstance(finish, str) else finish["type"]
        if not isinstance(finish, str) and kind == "abort" and finish.get("status_code") is not None:
            refused = too_long(str(finish.get("message")))
            raise refused or EngineFailed(f"request {self._rid}: the engine gave up: {finish}: ask another one")
        return FinishReason(kind)


def routed_of_all_layers(numbers: NDArray[np.int32], experts: Experts, tokens: int) -> Rows:
    """SGLang's int32[tokens, all layers, chosen] as a record. It holds zeros where nothing was computed, as for KV from elsewhere: a
    token that an expert would serve twice is unknown. Raises BadRouting where it is of another size.
    """
    layers = len(numbers) // max(1, tokens * experts.chosen)
    if tokens < 1 or layers <= experts.layers[-1] or len(numbers) != tokens * layers * experts.chosen:
        raise BadRouting(
            f"the engine gave {len(numbers)} experts for {tokens} tokens of {experts.chosen} in each layer: does it run another model?"
        )
    routed = numbers.reshape(tokens, layers, experts.chosen)[:, list(experts.layers)].astype(np.int64)
    ordered = np.sort(routed, axis=2)
    routed[np.any(ordered[:, :, 1:] == ordered[:, :, :-1], axis=(1, 2))] = FREE
    return experts.rows(routed)


def too_long(text: str) -> ContextTooLong | None:
    """What SGLang's refusal of a prompt says, if the text is one."""
    found = INPUT_TOO_LONG.search(text)
    return ContextTooLong(int(found[1]), int(found[2])) if found else None


def room_for_output(text: str) -> int:
    """How many tokens of output SGLang would accept, if the text is its refusal of more; else 0."""
    found = OUTPUT_TOO_LONG.search(text)
    return int(found[1]) - int(found[2]) if found else 0


def _size(items: Sequence[Any] | None) -> int | None:
    return None if items is None else len(items)


def _spans(meta: dict[str, Any], start: int, end: int) -> list[Span]:
    """(first, end, version) over the output indices start..end-1, by SGLang's spans, or all of the one version it names."""
    given = meta.get("weight_versions") or [{"version": meta.get("weight_version"), "start": 0, "end": end}]
    cut = [(max(start, span["start"]), min(end, span["end"]), str(span["version"])) for span in given]
    inside = [span for span in cut if span[0] < span[1]]
    if inside:  # what the spans do not reach was sampled by the last of them
        inside[-1] = (inside[-1][0], end, inside[-1][2])
    return inside or [(start, end, str(given[-1]["version"]))]


def _cut(ids: list[int], logprobs: list[float], spans: list[Span], reason: FinishReason | None, cached: int) -> list[Chunk]:
    if not ids and reason is None:
        return []
    base, last = spans[0][0], len(spans) - 1
    return [
        Chunk(
            tuple(ids[first - base : end - base]),
            tuple(logprobs[first - base : end - base]),
            version,
            reason if number == last else None,
            cached,
        )
        for number, (first, end, version) in enumerate(spans)
    ]
