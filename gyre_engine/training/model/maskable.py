"""Whether a model's layers can be shown a tree at once: attention can be masked, a recurrence over the rows of a pack cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MASKED = "full_attention"
"""The kind of layer to which a mask of ancestors is exact."""


def unmaskable(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Kinds of layers in a config.json that cannot be masked, sorted; of a model with vision those of its text part."""
    config = config.get("text_config") or config
    kinds = set(config.get("layer_types") or [])
    if not kinds and int(config.get("full_attention_interval") or 1) > 1:  # as published for Qwen3-Next
        kinds = {"linear_attention"}
    return tuple(sorted(kinds - {MASKED}))


def why_paths(choice: str, model: Path) -> str:
    """Why separate root-to-leaf paths are trained and not trees; empty: trees are. `choice`: of batch.trees."""
    path = model / "config.json"
    kinds = unmaskable(json.loads(path.read_text())) if path.is_file() else ()
    if kinds:
        return f"the model has layers of {', '.join(kinds)}, which cannot be masked"
    return f'batch.trees is "{choice}"' if choice == "paths" else ""
