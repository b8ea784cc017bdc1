"""Checkpoints of the core at an fsspec URL: weights, optimizer, and how far the ledger was applied.

`<url>/step-00000012/` holds model.safetensors and config.json, so that it loads as a Hugging Face folder,
optimizer.safetensors, and manifest.json with the SHA-256 of each. The manifest is written last: a folder without one
is a write that never ended, and does not exist for readers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec

_WEIGHTS, _OPTIMIZER, _MANIFEST = "model.safetensors", "optimizer.safetensors", "manifest.json"


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged, or would be overwritten with other bytes."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The core after a committed step.

    step:       committed steps so far
    position:   offset of the step's `step-committed` on the ledger
    weights:    Hugging Face safetensors image
    optimizer:  as `Optimizer.state`
    files:      what else makes the folder loadable (config.json, tokenizer.json), by name
    """

    step: int
    position: int
    weights: bytes
    optimizer: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def weights_hash(self) -> str:
        """As in the ledger's `step-committed`."""
        return hashlib.sha256(self.weights).hexdigest()


def write(url: str, checkpoint: Checkpoint) -> str:
    """Write `checkpoint` below `url`; its folder. The same again is no write; other bytes raise CheckpointError."""
    store, root = _store(url)
    folder = _folder(root, checkpoint.step)
    contents = {**checkpoint.files, _WEIGHTS: checkpoint.weights, _OPTIMIZER: checkpoint.optimizer}
    manifest = _manifest(checkpoint, contents)
    if store.exists(f"{folder}/{_MANIFEST}"):
        if store.cat_file(f"{folder}/{_MANIFEST}") != manifest:
            raise CheckpointError(f"{folder} holds another checkpoint of step {checkpoint.step}; move it away first")
        return folder
    store.makedirs(folder, exist_ok=True)
    for name, data in contents.items():
        store.pipe_file(f"{folder}/{name}", data)
    store.pipe_file(f"{folder}/{_MANIFEST}.part", manifest)
    store.mv(f"{folder}/{_MANIFEST}.part", f"{folder}/{_MANIFEST}")
    return folder


def steps(url: str) -> list[int]:
    """Steps with a complete checkpoint below `url`, ascending."""
    store, root = _store(url)
    if not store.exists(root):
        return []
    store.invalidate_cache()
    manifests = store.glob(f"{root}/step-*/{_MANIFEST}")
    return sorted(int(path.rsplit("/", 2)[1].removeprefix("step-")) for path in manifests)


def read(url: str, step: int | None = None) -> Checkpoint:
    """The checkpoint of `step`, or the newest; every file against its hash. Raises CheckpointError."""
    store, root = _store(url)
    known = steps(url)
    if not known or (step is not None and step not in known):
        wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
        raise CheckpointError(f"{url} holds no {wanted}; it has {known}")
    folder = _folder(root, known[-1] if step is None else step)
    manifest = json.loads(store.cat_file(f"{folder}/{_MANIFEST}"))
    contents = {name: _verified(store, f"{folder}/{name}", digest) for name, digest in manifest["sha256"].items()}
    return Checkpoint(
        step=manifest["step"],
        position=manifest["position"],
        weights=contents.pop(_WEIGHTS),
        optimizer=contents.pop(_OPTIMIZER),
        files=contents,
    )


def prune(url: str, step: int, keep: int) -> list[int]:
    """Remove what is older than the newest `keep` (>= 1) complete checkpoints up to `step`; the steps removed.

    Writes that never ended go too, and newer steps are left alone. The checkpoint of `step` is read first: where it is missing or
    damaged this raises CheckpointError, and nothing is removed. A manifest goes before the files that it names.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; at least one checkpoint must stay")
    read(url, step)
    store, root = _store(url)
    oldest = [known for known in steps(url) if known <= step][-keep:][0]
    gone = [begun for begun in _begun(store, root) if begun < oldest]
    for number in gone:
        folder = _folder(root, number)
        if store.exists(f"{folder}/{_MANIFEST}"):
            store.rm_file(f"{folder}/{_MANIFEST}")
        store.rm(folder, recursive=True)
    return gone


def _begun(store: Any, root: str) -> list[int]:
    """Steps with a folder, complete or not, ascending."""
    return sorted(int(str(path).rstrip("/").rsplit("step-", 1)[1]) for path in store.glob(f"{root}/step-*"))


def _manifest(checkpoint: Checkpoint, contents: Mapping[str, bytes]) -> bytes:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(contents.items())}
    fields = {"step": checkpoint.step, "position": checkpoint.position, "sha256": digests}
    return json.dumps(fields, indent=2, sort_keys=True).encode()


def _verified(store: Any, path: str, digest: str) -> bytes:
    try:
        data: bytes = store.cat_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; resume from an older step") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise CheckpointError(f"{path} is damaged: its hash is not the manifest's; resume from an older step")
    return data


def _store(url: str) -> tuple[Any, str]:
    store, root = fsspec.core.url_to_fs(url)
    return store, str(root).rstrip("/")


def _folder(root: str, step: int) -> str:
    return f"{root}/step-{step:08d}"
