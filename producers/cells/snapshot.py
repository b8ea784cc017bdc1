"""Weights that a cell has pulled from the core, as model folders that an engine can load."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np

from gyre_engine.events.training import Published
from gyre_engine.transfer import Descriptor, IntegrityError, Region, Transfer

PULL_LIMIT_S = 60.0


class Snapshots:
    """Model folders below `scratch`, one a version: the initial model's small files and the pulled weights."""

    def __init__(self, model: Path, scratch: Path, transfer: Transfer) -> None:
        self._model, self._scratch, self._transfer = model, scratch, transfer

    def pull(self, published: Published) -> Path:
        """A folder with a published image, read from the core unless it stands here already.

        Raises PeerLost, WrongKey or IntegrityError.
        """
        folder = self._scratch / f"version-{published.version:06d}"
        weights = folder / "model.safetensors"
        if weights.exists() and hashlib.sha256(weights.read_bytes()).hexdigest() == published.weights_hash:
            return folder
        image = np.empty(published.nbytes, dtype=np.uint8)
        descriptor = Descriptor.from_bytes(published.descriptor)
        self._transfer.read(descriptor, Region.of_array(image), timeout=PULL_LIMIT_S)
        found = hashlib.sha256(image.data).hexdigest()
        if found != published.weights_hash:
            raise IntegrityError(
                f"version {published.version} hashes to {found[:16]}, published as {published.weights_hash[:16]}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for file in self._model.iterdir():
            if file.is_file() and file.suffix != ".safetensors":
                shutil.copyfile(file, folder / file.name)
        weights.write_bytes(image.tobytes())
        return folder

    def keep_only(self, version: int) -> None:
        """Remove the folders of other versions."""
        for folder in self._scratch.glob("version-*"):
            if folder.name != f"version-{version:06d}":
                shutil.rmtree(folder, ignore_errors=True)
