"""The hash of a model folder's weights, as they stand on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path


def image_hash(model: Path) -> str:
    """sha256 over the folder's safetensors files in the order of their names, hex."""
    digest = hashlib.sha256()
    for file in sorted(model.glob("*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
