"""Checkpoints of the core at an fsspec URL: weights, optimizer, how far the ledger was applied, how far the data was drawn.

`<url>/step-00000012/` holds model.safetensors and config.json, so that it loads as a Hugging Face folder; optimizer/, which the
optimizer writes, each rank its part (torch.distributed.checkpoint); and manifest.json with the SHA-256 of every file. The manifest is
written last: a folder without one is a write that never ended, and does not exist for readers. Two checkpoints are the same where
weights and state are, by hashes of their tensors: other meshes cut the optimizer's files otherwise.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fsspec

from gyre_engine.dead_end import DeadEnd

_WEIGHTS, _OPTIMIZER, _MANIFEST = "model.safetensors", "optimizer", "manifest.json"
_FORMAT = 2
_STEP = re.compile(r"step-(\d{8,})")
_CHUNK = 1 << 24
REMEDY = "; resume from an older step"


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged, of something else, or would be overwritten with other bytes."""


class OfSomethingElse(CheckpointError, DeadEnd):
    """It is whole, and of another model, another config or another history than this run's: it stays so until a person moves it."""


class Damaged(CheckpointError):
    """What its manifest names is not there, or is not what it says."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a checkpoint belongs to; what is empty is not said.

    model:   digest of the parameters' names and shapes (`flat.layout_digest`)
    dtype:   of the weights
    config:  hash of the run's pinned config
    """

    model: str = ""
    dtype: str = ""
    config: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The core after a committed step.

    step:       committed steps so far
    position:   offset of the step's `step-committed` on the ledger
    weights:    Hugging Face safetensors image
    state_hash: as `Optimizer.state_hash`
    files:      what else makes the folder loadable (config.json, tokenizer.json), by name
    data:       groups consumed up to the step, and groups and draws dispatched when it was stored; the log has them too
    state:      URL from which the optimizer restores, once it is stored
    """

    step: int
    position: int
    weights: bytes
    state_hash: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    data: Mapping[str, int] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    state: str = field(default="", compare=False)

    @property
    def weights_hash(self) -> str:
        """As in the ledger's `step-committed`."""
        return hashlib.sha256(self.weights).hexdigest()

    def require(self, origin: Origin) -> None:
        """Raises OfSomethingElse where it is of another model or another config."""
        words = {"model": "another model", "dtype": "another training.dtype", "config": "another config"}
        for name, what in words.items():
            found, wanted = getattr(self.origin, name), getattr(origin, name)
            if found and found != wanted:
                raise OfSomethingElse(
                    f"the checkpoint of step {self.step} is of {what} ({name} {found[:16]}, this run has {wanted[:16]}): "
                    "resume with the model and the config that wrote it, or begin a new run from its weights"
                )


def write(url: str, checkpoint: Checkpoint, save: Callable[[str], None], void: Collection[tuple[int, str]] = ()) -> str:
    """Write `checkpoint` below `url`; its folder. The same again is no write, unless it is damaged; another raises OfSomethingElse.

    save: writes the optimizer's state into the folder at a URL
    void: commits (offset, weights' hash) that the ledger did not take: what was stored of them is written over
    """
    store, root = _store(url)
    folder = _folder(root, checkpoint.step)
    if store.exists(f"{folder}/{_MANIFEST}"):
        if _stands(url, checkpoint, void):
            return folder
        store.rm_file(f"{folder}/{_MANIFEST}")
    if store.exists(folder):
        store.rm(folder, recursive=True)  # what a write that never ended has left
    store.makedirs(folder, exist_ok=True)
    contents = {**checkpoint.files, _WEIGHTS: checkpoint.weights}
    for name, data in contents.items():
        store.pipe_file(f"{folder}/{name}", data)
    save(f"{_folder(url.rstrip('/'), checkpoint.step)}/{_OPTIMIZER}")
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()} | _digests(store, folder)
    manifest = json.dumps(_fields(checkpoint, digests), indent=2, sort_keys=True).encode()
    store.pipe_file(f"{folder}/{_MANIFEST}.part", manifest)
    store.mv(f"{folder}/{_MANIFEST}.part", f"{folder}/{_MANIFEST}")
    return folder


def _stands(url: str, checkpoint: Checkpoint, void: Collection[tuple[int, str]]) -> bool:
    """Whether it is stored already; not where what is there is damaged or void. Raises OfSomethingElse where it is another one."""
    store, root = _store(url)
    folder = _folder(root, checkpoint.step)
    try:
        found = _manifest(store, folder)
        if _identity(found) == _identity(_fields(checkpoint, {})):
            return bool(_read(url, checkpoint.step))
    except Damaged:
        return False
    if (found["position"], found["weights"]) not in void:
        raise OfSomethingElse(f"{folder} holds another checkpoint of step {checkpoint.step}; move it away first")
    return False


def steps(url: str) -> list[int]:
    """Steps with a complete checkpoint below `url`, ascending."""
    store, root = _store(url)
    if not store.exists(root):
        return []
    store.invalidate_cache()
    return _numbers(str(path).removesuffix(f"/{_MANIFEST}") for path in store.glob(f"{root}/step-*/{_MANIFEST}"))


def read(url: str, step: int | None = None) -> Checkpoint:
    """The checkpoint of `step`, or the newest; every file against its hash. Raises CheckpointError."""
    try:
        return _read(url, step)
    except OSError as error:
        raise CheckpointError(f"{url} cannot be read: {error}{REMEDY}") from error


def _read(url: str, step: int | None) -> Checkpoint:
    store, root = _store(url)
    known = steps(url)
    if not known or (step is not None and step not in known):
        wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
        raise CheckpointError(f"{url} holds no {wanted}; it has {known}")
    number = known[-1] if step is None else step
    folder = _folder(root, number)
    manifest = _manifest(store, folder)
    digests: dict[str, str] = manifest["sha256"]
    state = {name for name in digests if name.startswith(f"{_OPTIMIZER}/")}
    for name in state:
        _compare(f"{folder}/{name}", _present(partial(_digest, store), f"{folder}/{name}"), digests[name])
    contents = {name: _verified(store, f"{folder}/{name}", digests[name]) for name in digests if name not in state}
    return Checkpoint(
        step=manifest["step"], position=manifest["position"], weights=contents.pop(_WEIGHTS), state_hash=manifest["state"],
        files=contents, data=manifest["data"], origin=Origin(**manifest["origin"]),
        state=f"{_folder(url.rstrip('/'), number)}/{_OPTIMIZER}",
    )  # fmt: skip


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
    return _numbers(str(path) for path in store.glob(f"{root}/step-*"))


def _numbers(folders: Iterable[str]) -> list[int]:
    """Steps of the folders that are named as ours, ascending; others lie there for somebody else."""
    matches = (_STEP.fullmatch(folder.rstrip("/").rsplit("/", 1)[-1]) for folder in folders)
    return sorted(int(match[1]) for match in matches if match)


def _fields(checkpoint: Checkpoint, digests: Mapping[str, str]) -> dict[str, Any]:
    origin = checkpoint.origin
    return {
        "format": _FORMAT, "step": checkpoint.step, "position": checkpoint.position, "weights": checkpoint.weights_hash,
        "state": checkpoint.state_hash, "data": dict(checkpoint.data), "sha256": dict(digests),
        "origin": {"model": origin.model, "dtype": origin.dtype, "config": origin.config},
    }  # fmt: skip


def _identity(manifest: Mapping[str, Any]) -> list[Any]:
    return [manifest[name] for name in ("step", "position", "weights", "state", "origin")]


def _manifest(store: Any, folder: str) -> dict[str, Any]:
    path = f"{folder}/{_MANIFEST}"
    try:
        manifest: dict[str, Any] = json.loads(store.cat_file(path))
        known = manifest.get("format", _FORMAT)
    except (ValueError, AttributeError) as error:
        raise Damaged(f"{path} is damaged: {error}{REMEDY}") from error
    if known != _FORMAT:
        raise CheckpointError(f"{path} has format {known}, this Gyre reads {_FORMAT}: read it with the version that wrote it")
    kinds = {"sha256": dict, "step": int, "position": int, "weights": str, "state": str, "data": dict, "origin": dict}
    missing = [name for name, kind in kinds.items() if not isinstance(manifest.get(name), kind)]
    if missing or _WEIGHTS not in manifest["sha256"]:
        raise Damaged(f"{path} is damaged: it has no {', '.join(missing) or _WEIGHTS}{REMEDY}")
    return manifest


def _digests(store: Any, folder: str) -> dict[str, str]:
    """Of the optimizer's files, as they can be read back."""
    store.invalidate_cache()
    found = sorted(str(path) for path in store.find(f"{folder}/{_OPTIMIZER}"))
    marker = f"{folder.rsplit('/', 1)[-1]}/{_OPTIMIZER}/"
    return {f"{_OPTIMIZER}/{path.rsplit(marker, 1)[-1]}": _digest(store, path) for path in found}


def _digest(store: Any, path: str) -> str:
    digest = hashlib.sha256()
    with store.open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _verified(store: Any, path: str, digest: str) -> bytes:
    data: bytes = _present(store.cat_file, path)
    _compare(path, hashlib.sha256(data).hexdigest(), digest)
    return data


def _present(read: Callable[[str], Any], path: str) -> Any:
    try:
        return read(path)
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing{REMEDY}") from error


def _compare(path: str, found: str, digest: str) -> None:
    if found != digest:
        raise Damaged(f"{path} is damaged: its hash is not the manifest's{REMEDY}")


def _store(url: str) -> tuple[Any, str]:
    store, root = fsspec.core.url_to_fs(url)
    return store, str(root).rstrip("/")


def _folder(root: str, step: int) -> str:
    return f"{root}/step-{step:08d}"
