"""Whether a model folder's words agree: those of its tokenizer (what agents and engines speak) and its config.json.

And whether a reference policy means by each id what the policy means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tokenizers import Tokenizer


def misfits(model: Path) -> Iterator[str]:
    """What differs, in words. A part that cannot be read is not this check's to tell."""
    size = _of_config(model)
    if size is None:
        return
    last = max(_words(model).values(), default=None)
    if last is not None and last >= size:
        yield (
            f"tokenizer.json has words up to {last}, config.json has vocab_size {size}: the trainer could not train on what the "
            "engine reads; are both of the same model?"
        )


def other_words(policy: Path, reference: Path) -> str:
    """Where an id is another word in `reference`, in words; empty where none is. A folder without a tokenizer names no words."""
    ours, theirs = ({number: word for word, number in _words(folder).items()} for folder in (policy, reference))
    differing = sorted(number for number in ours.keys() & theirs.keys() if ours[number] != theirs[number])
    if not differing:
        return ""
    first = differing[0]
    return (
        f"{reference / 'tokenizer.json'} has another word than the policy's at {len(differing)} ids (id {first} is "
        f"{theirs[first]!r}, the policy's {ours[first]!r}): name a model with the policy's tokenizer"
    )


def _of_config(model: Path) -> int | None:
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = json.loads((model / "config.json").read_text(encoding="utf-8")).get("vocab_size")
        return found if isinstance(found, int) else None
    return None


def _words(model: Path) -> dict[str, int]:
    try:
        return Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab()
    except Exception:  # the library raises plain exceptions; the proxy, which needs it whole, tells them
        return {}
