"""Publication: a committed version as a safetensors image in an immutable buffer that others read one-sided (log-rules, 7).

writes    training: published, checkpointed
promises  the optimizer never writes to what readers read; a buffer stands until two later versions are out; a checkpoint is removed
          only when a newer one has been read back
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from consumers.trainer.pen import Pen
from gyre_engine.events.training import Checkpointed, Published
from gyre_engine.training import checkpoint
from gyre_engine.training.checkpoint import Origin
from gyre_engine.training.replica import Optimizer, TrainingReplica
from gyre_engine.transfer import Descriptor, Region, Transfer

logger = logging.getLogger(__name__)

KEPT = 3
"""Versions whose buffers stand: a satellite or an engine may still be reading the last but one."""

UNREGISTER_LIMIT_S = 10.0


class Publisher:
    """Exports the core's replica; `weights_hash` is that of the last export."""

    def __init__(
        self, pen: Pen, replica: TrainingReplica, optimizer: Optimizer, transfer: Transfer, files: Mapping[str, bytes],
        origin: Origin | None = None, fixed_probe: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._files, self._origin = files, origin or Origin()
        self._fixed_probe = list(fixed_probe)
        self._pen, self._replica, self._optimizer, self._transfer = pen, replica, optimizer, transfer
        self._kept: list[tuple[Descriptor, Region]] = []
        self._image = b""
        self.weights_hash = ""

    def export(self) -> str:
        """Take the replica's present weights; their hash."""
        self._image = self._replica.export()
        self.weights_hash = hashlib.sha256(self._image).hexdigest()
        return self.weights_hash

    def publish(self, core_epoch: int, version: int, probe: list[int]) -> None:
        """Put the exported weights behind a descriptor and say so on the ledger.

        probe: ids of a recorded path that engines score too; where there is none, the fixed ones are taken.
        """
        began = time.monotonic()
        region = Region.of_array(np.frombuffer(self._image, dtype=np.uint8))  # not a copy: bytes never change
        descriptor = self._transfer.register(region)
        self._kept.append((descriptor, region))
        ids = np.array(probe if len(probe) > 1 else self._fixed_probe, dtype=np.int32)
        logprobs = self._replica.logprobs(ids, temperature=1.0) if len(ids) > 1 else np.zeros(0, dtype=np.float32)
        self._pen.write(
            [
                Published(
                    core_epoch=core_epoch, version=version, weights_hash=self.weights_hash, descriptor=descriptor.to_bytes(),
                    nbytes=len(self._image), probe_ids=ids, probe_logprobs=logprobs,
                    took_us=int((time.monotonic() - began) * 1e6),
                )
            ]
        )  # fmt: skip
        self._end_the_old()

    def _end_the_old(self) -> None:
        """One that somebody still reads stays, closed to others, and is tried again at the next publication."""
        while len(self._kept) > KEPT:
            try:
                self._transfer.unregister(self._kept[0][0], timeout=UNREGISTER_LIMIT_S)
            except TimeoutError as error:
                logger.warning("a superseded version stays in memory: %s", error)
                return
            del self._kept[0]

    def checkpoint(
        self, core_epoch: int, step: int, position: int, url: str, data: Mapping[str, int] | None = None,
        void: Collection[tuple[int, str]] = (),
    ) -> None:  # fmt: skip
        """Store the exported weights, the optimizer's state and the model's small files, then say where.

        position: offset of the step's `step-committed` on the ledger; data: how far groups were dispatched and consumed; void: commits
        that the ledger did not take.
        """
        state = self._optimizer.state_hash()
        stored = checkpoint.Checkpoint(step, position, self._image, state, self._files, data or {}, self._origin)
        place = checkpoint.write(url, stored, self._optimizer.save, void)
        self._pen.write([Checkpointed(core_epoch=core_epoch, step=step, weights_hash=self.weights_hash, url=place)])

    def prune(self, step: int, url: str, keep: int) -> None:
        """Remove checkpoints before the newest `keep`, that of `step` among them; none where that one cannot be read."""
        try:
            gone = checkpoint.prune(url, step, keep)
        except (checkpoint.CheckpointError, OSError) as error:
            logger.error("older checkpoints stay until the next one is stored: %s", error)
        else:
            logger.info("checkpoint of step %d stands, removed those of %s", step, gone or "no other")


def small_files(model: Path) -> dict[str, bytes]:
    """What beside the weights makes a model folder loadable: config, tokenizer."""
    return {f.name: f.read_bytes() for f in sorted(model.iterdir()) if f.is_file() and f.suffix != ".safetensors"}
