"""Checkpoints: what was written is read, what was half written does not exist, what was damaged or is of something else is refused."""

import json
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch

from gyre_engine.training import checkpoint as checkpoints
from gyre_engine.training.checkpoint import Checkpoint, CheckpointError, Origin
from gyre_engine.training.model.flat import flatten
from gyre_engine.training.optimizer.adamw import AdamW
from gyre_engine.training.replica import Hyper


@pytest.fixture(params=["folder", "memory"])
def url(request, tmp_path):
    return str(tmp_path / "run") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


def of_step(step, weights=b"weights"):
    data = {"groups_consumed": 4 * step, "groups_dispatched": 4 * step + 8, "draws": 4 * step + 9}
    return Checkpoint(step, 100 + step, weights, f"state {step}", {"config.json": b"{}"}, data, Origin("m", "float32", "c"))


def moments(url):
    """The state of an optimizer, as one writes it: several files in a folder."""
    store, root = fsspec.core.url_to_fs(url)
    store.makedirs(root, exist_ok=True)
    for name in (".metadata", "__0_0.distcp"):
        store.pipe_file(f"{root}/{name}", b"moments")


def write(url, checkpoint, save=moments):
    return checkpoints.write(url, checkpoint, save)


def test_the_newest_or_the_named_step_is_read_back_whole(url):
    assert checkpoints.steps(url) == []
    for step in (2, 10, 9):
        write(url, of_step(step))
    assert checkpoints.steps(url) == [2, 9, 10]
    assert checkpoints.read(url) == of_step(10)
    assert checkpoints.read(url, 2) == of_step(2)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 3; it has \[2, 9, 10\]"):
        checkpoints.read(url, 3)


def test_the_weights_hash_is_that_of_the_image():
    """SHA-256 of the empty string is a constant of the standard."""
    expected = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert of_step(1, weights=b"").weights_hash == expected


def test_the_same_again_changes_nothing_and_other_bytes_are_refused(url):
    folder = write(url, of_step(1))
    assert write(url, of_step(1)) == folder
    with pytest.raises(CheckpointError, match="holds another checkpoint of step 1"):
        write(url, of_step(1, weights=b"others"))


def test_a_write_that_never_ended_does_not_exist(tmp_path):
    url = str(tmp_path)
    write(url, of_step(1))
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "step-00000002" / "manifest.json.part").write_bytes(b"{}")
    assert checkpoints.read(url) == of_step(1)
    write(url, of_step(2))
    assert checkpoints.read(url) == of_step(2)


class Died(BaseException):
    """The process ends in the middle of a write."""


def test_a_write_that_dies_between_the_state_and_the_manifest_does_not_exist_and_is_written_again(url):
    def dies(place):
        moments(place)
        raise Died

    write(url, of_step(1))
    with pytest.raises(Died):
        write(url, of_step(2), dies)
    assert checkpoints.steps(url) == [1]
    write(url, of_step(2))
    assert checkpoints.read(url) == of_step(2)


def test_a_truncated_manifest_is_named(tmp_path):
    write(str(tmp_path), of_step(1))
    manifest = tmp_path / "step-00000001" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:40])
    with pytest.raises(CheckpointError, match=r"manifest.json is damaged"):
        checkpoints.read(str(tmp_path))


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        (Origin("other", "float32", "c"), "another model"),
        (Origin("m", "bfloat16", "c"), r"another training.dtype \(dtype float32, this run has bfloat16\)"),
        (Origin("m", "float32", "other"), "another config"),
    ],
)
def test_what_is_of_something_else_is_refused_by_name(tmp_path, origin, message):
    write(str(tmp_path), of_step(1))
    stored = checkpoints.read(str(tmp_path))
    stored.require(Origin("m", "float32", "c"))
    with pytest.raises(CheckpointError, match=message):
        stored.require(origin)


@pytest.mark.parametrize("number", [1, 99])
def test_a_format_that_is_not_this_one_is_refused(tmp_path, number):
    write(str(tmp_path), of_step(1))
    manifest = tmp_path / "step-00000001" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": number}))
    with pytest.raises(CheckpointError, match=f"has format {number}, this Gyre reads 2"):
        checkpoints.read(str(tmp_path))


def trained():
    """Parameters and their optimizer after two updates."""
    torch.manual_seed(1)
    named = [("norm", torch.nn.Parameter(torch.randn(3))), ("matrix", torch.nn.Parameter(torch.randn(5, 3)))]
    flat = flatten(named)
    optimizer = AdamW(flat)
    for seed in (1, 2):
        optimizer.apply(np.random.default_rng(seed).standard_normal(32).astype(np.float32), 1, Hyper(lr=0.1))
    return flat, optimizer


def test_an_optimizers_state_comes_back_from_any_store_and_the_same_again_is_no_write(url):
    """Equal states are the same checkpoint."""
    _, optimizer = trained()
    of_it = Checkpoint(2, 7, b"weights", optimizer.state_hash())
    folder = checkpoints.write(url, of_it, optimizer.save)
    _, other = trained()
    assert checkpoints.write(url, Checkpoint(2, 7, b"weights", other.state_hash()), other.save) == folder
    _, third = trained()
    third.apply(np.ones(32, dtype=np.float32), 1, Hyper(lr=0.1))
    assert third.state_hash() != of_it.state_hash
    third.restore(checkpoints.read(url).state)
    assert third.state_hash() == of_it.state_hash


def test_equal_states_give_equal_files(tmp_path):
    found = []
    for name in ("a", "b"):
        _, optimizer = trained()
        optimizer.save(f"file://{tmp_path}/{name}")
        found.append({f.name: f.read_bytes() for f in sorted((tmp_path / name).iterdir())})
    assert found[0] == found[1] and len(found[0]) >= 2


def test_damage_is_named(tmp_path):
    write(str(tmp_path), of_step(1))
    (tmp_path / "step-00000001" / "model.safetensors").write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged"):
        checkpoints.read(str(tmp_path))
    (tmp_path / "step-00000001" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors is missing"):
        checkpoints.read(str(tmp_path))


def test_pruning_keeps_the_newest_up_to_the_named_step(url):
    for step in range(1, 7):
        write(url, of_step(step))
    assert checkpoints.prune(url, 5, keep=2) == [1, 2, 3]
    assert checkpoints.steps(url) == [4, 5, 6]
    assert checkpoints.prune(url, 5, keep=2) == []


def test_pruning_takes_what_was_half_written_before(tmp_path):
    for step in (1, 4):
        write(str(tmp_path), of_step(step))
    (tmp_path / "step-00000003").mkdir()
    (tmp_path / "step-00000003" / "model.safetensors").write_bytes(b"half")
    assert checkpoints.prune(str(tmp_path), 4, keep=1) == [1, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]


@pytest.mark.parametrize("damage", ["damaged", "missing", "no checkpoint of step 2"])
def test_nothing_is_pruned_for_a_checkpoint_that_cannot_be_read(tmp_path, damage):
    url, newest = str(tmp_path), tmp_path / "step-00000002"
    for step in (1, 2):
        write(url, of_step(step))
    match damage:
        case "damaged":
            (newest / "optimizer" / "__0_0.distcp").write_bytes(b"momen")
        case "missing":
            (newest / "optimizer" / "__0_0.distcp").unlink()
        case _:
            (newest / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=damage):
        checkpoints.prune(url, 2, keep=1)
    assert checkpoints.read(url, 1) == of_step(1)


def test_folders_that_somebody_else_put_beside_checkpoints_are_passed_over(tmp_path):
    """Moved away by hand, or of another tool."""
    url = f"file://{tmp_path}"
    for step in (1, 2):
        checkpoints.write(url, Checkpoint(step, step, b"weights", "s"), lambda _: None)
    (tmp_path / "step-00000001").rename(tmp_path / "step-00000001.bak")
    for name in ("step-x", "step-1", "step-00000000 (copy)"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    assert (checkpoints.steps(url), checkpoints.read(url).step) == ([2], 2)
    assert checkpoints.prune(url, 2, keep=1) == []
    assert (tmp_path / "step-00000001.bak").exists() and (tmp_path / "step-x").exists()


@pytest.mark.parametrize("name", ["sha256", "step", "position", "weights", "state", "data", "origin"])
def test_a_manifest_that_lacks_something_is_damaged(tmp_path, name):
    url = f"file://{tmp_path}"
    manifest = Path(checkpoints.write(url, Checkpoint(1, 1, b"weights", "s"), lambda _: None)) / "manifest.json"
    told = json.loads(manifest.read_text())
    del told[name]
    manifest.write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match=f"manifest.json is damaged: it has no {name}; resume from an older step"):
        checkpoints.read(url)


def test_a_store_that_cannot_be_read_is_a_checkpoint_error(tmp_path):
    """A folder where a file should be."""
    folder = Path(checkpoints.write(f"file://{tmp_path}", Checkpoint(1, 1, b"weights", "s"), lambda _: None))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: .*Is a directory"):
        checkpoints.read(f"file://{tmp_path}")


def test_only_what_is_known_to_be_void_is_written_over(tmp_path):
    url = f"file://{tmp_path}"
    late = Checkpoint(1, 5, b"late", "s")
    checkpoints.write(url, late, lambda _: None)
    with pytest.raises(CheckpointError, match="holds another checkpoint of step 1"):
        checkpoints.write(url, Checkpoint(1, 9, b"true", "s"), lambda _: None, void={(4, late.weights_hash), (5, "other")})
    checkpoints.write(url, Checkpoint(1, 9, b"true", "s"), lambda _: None, void={(5, late.weights_hash)})
    assert checkpoints.read(url) == Checkpoint(1, 9, b"true", "s", origin=Origin())


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_a_damaged_one_is_written_anew_when_its_step_is_stored_again(tmp_path, name):
    """By a core that could not read it and made the step again."""
    url, of_it = f"file://{tmp_path}", Checkpoint(1, 5, b"weights", "s")
    folder = Path(checkpoints.write(url, of_it, lambda _: None))
    (folder / name).write_bytes((folder / name).read_bytes()[:-3])
    checkpoints.write(url, of_it, lambda _: None)
    assert checkpoints.read(url) == of_it
