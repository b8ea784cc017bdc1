"""The optimizer's state in a checkpoint: torch.distributed.checkpoint at an fsspec URL, each rank its own tensors.

Tensors are named by units of the flat layout, which is of the model alone: what one mesh wrote, another reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.metadata import StorageMeta

from gyre_engine.training.replica import Untrainable

_NUMBER = "step"


class _Writer(FsspecWriter):
    """torch's, without its random id and the place: equal states of equal meshes give equal files."""

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()


def save(url: str, tensors: Mapping[str, Tensor], number: int, *, alone: bool) -> None:
    """Write this process's tensors; of several ranks, all call this at the same time. The number stands with the first's."""
    state: dict[str, Any] = {**tensors, _NUMBER: torch.tensor(number, dtype=torch.int64)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a write that never ended, which is written again, and about running alone
        state_dict_saver.save(state, storage_writer=_Writer(url), no_dist=alone)


def load(url: str, blank: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fill `blank`, the state of a run of units; whichever ranks wrote it. Raises Untrainable where it is of other names or sizes."""
    _load(url, blank)
    return blank


def number(url: str) -> int:
    """Updates that were made before it was written."""
    found = {_NUMBER: torch.zeros((), dtype=torch.int64)}
    _load(url, found)
    return int(found[_NUMBER])


def _load(url: str, state: dict[str, Tensor]) -> None:
    known = FsspecReader(url).read_metadata().state_dict_metadata
    for name, tensor in state.items():
        size = getattr(known.get(name), "size", None)
        if size != tensor.size():
            had = "none" if size is None else f"one of {tuple(size)}"
            raise Untrainable(
                f"this optimizer state is of another model: {name} should have {tuple(tensor.shape)}, {url} holds {had}; "
                "resume with the config that wrote it"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state_dict_loader.load(state, storage_reader=FsspecReader(url), no_dist=True)
