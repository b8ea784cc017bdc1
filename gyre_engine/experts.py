"""Mixtures of experts: which layers have them, and how the experts that a token was routed to are written down.

A record is a row of bytes a token: layer after layer of those that have experts, `chosen` numbers each, of one byte or (where a
byte would not hold them) two, little-endian. A row of 0xff throughout says that nothing is known: the token is routed freely.
numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyre_engine.dead_end import DeadEnd

Rows = NDArray[np.uint8]
"""uint8[tokens, width]"""

UNKNOWN = 0xFF
FREE = -1
"""An expert's number where the router is to choose."""
NO_ROWS: Rows = np.zeros((0, 0), dtype=np.uint8)
"""Nothing was recorded."""


class BadRouting(ValueError, DeadEnd):
    """A record of routed experts does not fit its model or its tokens; the message says how.

    On the log it stays so. Whoever finds it in an engine's answer makes another error of it: the next answer may fit.
    """


@dataclass(frozen=True, slots=True)
class Experts:
    """count experts in each of `layers`, ascending, of which a token is routed to `chosen`; ffn: an expert's inner size.

    normed: the chosen experts' probabilities are scaled to a sum of 1
    """

    count: int
    chosen: int
    ffn: int
    normed: bool
    layers: tuple[int, ...]

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Experts | None:
        """From the fields of a config.json; None for a model, or a qwen3_moe, whose layers are all dense. Raises ValueError."""
        count = int(config.get("num_experts") or config.get("num_local_experts") or 0)
        if config.get("model_type") != "qwen3_moe" or not count:
            return None
        every, dense = int(config.get("decoder_sparse_step") or 1), set(config.get("mlp_only_layers") or ())
        layers = tuple(i for i in range(int(config["num_hidden_layers"])) if (i + 1) % every == 0 and i not in dense)
        chosen = int(config["num_experts_per_tok"])
        if not 1 <= chosen <= count:
            raise ValueError(f"num_experts_per_tok is {chosen}, but there are {count} experts; is config.json whole?")
        normed = bool(config.get("norm_topk_prob", False))
        return cls(count, chosen, int(config["moe_intermediate_size"]), normed, layers) if layers else None

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return len(self.layers) * self.chosen * self._number.itemsize

    def rows(self, routed: NDArray[Any]) -> Rows:
        """int[tokens, layers, chosen] as a record; FREE in all of a token's places where nothing is known."""
        numbers = np.ascontiguousarray(routed.reshape(len(routed), -1).astype(self._number))
        return numbers.view(np.uint8).reshape(len(routed), self.width)

    def routed(self, rows: Rows) -> NDArray[np.int64]:
        """The inverse of `rows`: int64[tokens, layers, chosen]. Raises BadRouting where it is no record of this model."""
        if rows.shape[1] != self.width:
            raise BadRouting(
                f"a record of {rows.shape[1]} bytes a token, but {self.chosen} experts in {len(self.layers)} layers take "
                f"{self.width}: were these calls sampled by another model?"
            )
        numbers = np.ascontiguousarray(rows).view(self._number).astype(np.int64).reshape(-1, len(self.layers), self.chosen)
        numbers[(rows == UNKNOWN).all(axis=1)] = FREE
        known = numbers[numbers[:, 0, 0] != FREE]
        ordered = np.sort(known, axis=2)
        if known.size and (ordered.max() >= self.count or np.any(ordered[:, :, 1:] == ordered[:, :, :-1])):
            raise BadRouting(
                f"a record names an expert twice or one beyond {self.count - 1}: were these calls sampled by another model?"
            )
        return numbers

    @property
    def _number(self) -> np.dtype[Any]:
        return np.dtype("u1" if self.count <= UNKNOWN else "<u2")


def recorded_from(prefix: int) -> int:
    """The path position at which the record of a call with a shared prefix of so many tokens begins: its last token, as nobody had
    computed it when it was sampled."""
    return max(0, prefix - 1)


def recorded_tokens(prefix: int, path: int) -> int:
    """How many tokens it is of: all from there on but for the last one of the path."""
    return max(0, path - 1 - recorded_from(prefix))


def unknown(tokens: int, width: int) -> Rows:
    """Rows that say nothing."""
    return np.full((tokens, width), UNKNOWN, dtype=np.uint8)


def table(flat: NDArray[np.uint8], tokens: int) -> Rows:
    """Rows of `tokens` tokens as an event carries them, one after the other; NO_ROWS for none. Raises BadRouting."""
    if not len(flat):
        return NO_ROWS
    if not tokens or len(flat) % tokens:
        raise BadRouting(f"{len(flat)} bytes of routed experts do not divide among {tokens} tokens")
    return flat.reshape(tokens, -1)


def side_by_side(parts: Sequence[tuple[Rows, int]]) -> Rows:
    """(record, tokens) of packs that are joined; where one has none its tokens are unknown. Raises BadRouting for two widths."""
    widths = {rows.shape[1] for rows, _ in parts if rows.size}
    if not widths:
        return NO_ROWS
    if len(widths) > 1:
        raise BadRouting(f"records of {sorted(widths)} bytes a token cannot stand in one pack: they are of different models")
    (width,) = widths
    return np.concatenate([rows if rows.size else unknown(tokens, width) for rows, tokens in parts])
