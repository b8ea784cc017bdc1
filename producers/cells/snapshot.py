"""Weights that a cell has pulled, as model folders that an engine can load, and open to the cells below it in the tree.

promises  a folder has weights only once their whole hash was right, so that no engine loads a mixture; a pull that broke off goes on
          where it was, from whichever source
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gyre_engine.events.training import Published
from gyre_engine.transfer import Descriptor, Region, Transfer
from gyre_engine.transfer.pull import Pull

logger = logging.getLogger(__name__)

PULL_LIMIT_S = 60.0
"""Of one read; the next goes on where it ended."""
UNREGISTER_LIMIT_S = 5.0


class Snapshots:
    """Model folders below `scratch`, one a version: the initial model's small files and the pulled weights."""

    def __init__(self, model: Path, scratch: Path, transfer: Transfer) -> None:
        self._model, self._scratch, self._transfer = model, scratch, transfer
        self._pull = Pull(transfer)
        self._held: dict[int, tuple[Descriptor, Region]] = {}
        self._turn = threading.Lock()

    def pull(self, published: Published, descriptor: bytes) -> Path:
        """A folder with a published image, read from where `descriptor` points unless it stands here already.

        Raises PeerLost, WrongKey or IntegrityError. One at a time: a pull whose caller gave up may still be reading.
        """
        with self._turn:
            return self._pulled(published, descriptor)

    def _pulled(self, published: Published, descriptor: bytes) -> Path:
        folder = self._folder(published.version)
        weights = folder / "model.safetensors"
        if weights.exists() and _hash(np.fromfile(weights, dtype=np.uint8)) == published.weights_hash:
            return folder
        image = self._pull.read(published.weights_hash, published.nbytes, descriptor, PULL_LIMIT_S)
        folder.mkdir(parents=True, exist_ok=True)
        for file in self._model.iterdir():
            if file.is_file() and file.suffix != ".safetensors":
                shutil.copyfile(file, folder / file.name)
        part = folder / "model.part"
        part.write_bytes(image.data)
        os.replace(part, weights)
        return folder

    def hold(self, version: int) -> bytes:
        """Open the pulled weights to other cells, from memory; the descriptor. They stand until `keep_only` of another version."""
        if version not in self._held:
            region = Region.of_array(np.fromfile(self._folder(version) / "model.safetensors", dtype=np.uint8))
            self._held[version] = self._transfer.register(region), region
        return self._held[version][0].to_bytes()

    def keep_only(self, version: int) -> None:
        """Remove the folders of other versions; what others still read of them goes at the next call."""
        for folder in self._scratch.glob("version-*"):
            if folder != self._folder(version):
                shutil.rmtree(folder, ignore_errors=True)
        for old in [v for v in self._held if v != version]:
            try:
                self._transfer.unregister(self._held[old][0], timeout=UNREGISTER_LIMIT_S)
            except TimeoutError as error:
                logger.warning("version %d stays in memory: %s", old, error)
            else:
                del self._held[old]

    def _folder(self, version: int) -> Path:
        return self._scratch / f"version-{version:06d}"


def _hash(image: NDArray[np.uint8]) -> str:
    return hashlib.sha256(image.data).hexdigest()
