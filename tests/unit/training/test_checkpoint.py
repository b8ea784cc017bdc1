"""Checkpoints: what was written is read, what was half written does not exist, what was damaged is refused."""

import uuid

import pytest

from gyre_engine.training import checkpoint as checkpoints
from gyre_engine.training.checkpoint import Checkpoint, CheckpointError


@pytest.fixture(params=["folder", "memory"])
def url(request, tmp_path):
    return str(tmp_path / "run") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


def of_step(step, weights=b"weights"):
    return Checkpoint(step, 100 + step, weights, b"moments", {"config.json": b"{}"})


def test_the_newest_or_the_named_step_is_read_back_whole(url):
    assert checkpoints.steps(url) == []
    for step in (2, 10, 9):
        checkpoints.write(url, of_step(step))
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
    folder = checkpoints.write(url, of_step(1))
    assert checkpoints.write(url, of_step(1)) == folder
    with pytest.raises(CheckpointError, match="holds another checkpoint of step 1"):
        checkpoints.write(url, of_step(1, weights=b"others"))


def test_a_write_that_never_ended_does_not_exist(tmp_path):
    url = str(tmp_path)
    checkpoints.write(url, of_step(1))
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "step-00000002" / "manifest.json.part").write_bytes(b"{}")
    assert checkpoints.read(url) == of_step(1)
    checkpoints.write(url, of_step(2))
    assert checkpoints.read(url) == of_step(2)


def test_damage_is_named(tmp_path):
    checkpoints.write(str(tmp_path), of_step(1))
    (tmp_path / "step-00000001" / "model.safetensors").write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged"):
        checkpoints.read(str(tmp_path))
    (tmp_path / "step-00000001" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors is missing"):
        checkpoints.read(str(tmp_path))


def test_pruning_keeps_the_newest_up_to_the_named_step(url):
    for step in range(1, 7):
        checkpoints.write(url, of_step(step))
    assert checkpoints.prune(url, 5, keep=2) == [1, 2, 3]
    assert checkpoints.steps(url) == [4, 5, 6]
    assert checkpoints.prune(url, 5, keep=2) == []


def test_pruning_takes_what_was_half_written_before(tmp_path):
    for step in (1, 4):
        checkpoints.write(str(tmp_path), of_step(step))
    (tmp_path / "step-00000003").mkdir()
    (tmp_path / "step-00000003" / "model.safetensors").write_bytes(b"half")
    assert checkpoints.prune(str(tmp_path), 4, keep=1) == [1, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]


@pytest.mark.parametrize("damage", ["damaged", "missing", "no checkpoint of step 2"])
def test_nothing_is_pruned_for_a_checkpoint_that_cannot_be_read(tmp_path, damage):
    url, newest = str(tmp_path), tmp_path / "step-00000002"
    for step in (1, 2):
        checkpoints.write(url, of_step(step))
    match damage:
        case "damaged":
            (newest / "optimizer.safetensors").write_bytes(b"momentz")
        case "missing":
            (newest / "optimizer.safetensors").unlink()
        case _:
            (newest / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=damage):
        checkpoints.prune(url, 2, keep=1)
    assert checkpoints.read(url, 1) == of_step(1)
