"""What a run's start tells of its model: the hash of the weights as they stand on disk, and the files that say their shape."""

from __future__ import annotations

import hashlib
from pathlib import Path

CONFIG_FILES = ("config.json", "generation_config.json")


def image_hash(model: Path) -> str:
    """sha256 over the folder's safetensors files in the order of their names, hex."""
    digest = hashlib.sha256()
    for file in sorted(model.glob("*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def config_files(model: Path) -> dict[str, str]:
    """The folder's files that say what its weights are, by name: with them and the weights an engine can start elsewhere."""
    return {name: (model / name).read_text(encoding="utf-8") for name in CONFIG_FILES if (model / name).is_file()}
