"""A run goes on, and is replayed, with the weights that it began with: others are named with their folder and the remedy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from infra.cli import running
from infra.cli.attach import Attached
from infra.cli.errors import CommandError
from infra.cli.replaying import settings_of
from infra.stack.layout import StackFolder
from tests.unit.cli.pinned_run import model, pinned_run

Use = Callable[[Attached], object]


@pytest.fixture(params=["resume", "replay"])
def use(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Use:
    """What is about to train with a run's weights again."""

    def resume(attached: Attached) -> object:
        @contextmanager
        def attach(_run: str, _folder: StackFolder) -> Iterator[Attached]:
            yield attached

        monkeypatch.setattr(running, "attach", attach)
        return running.to_resume("r-1", StackFolder(tmp_path / ".gyre"))

    return resume if request.param == "resume" else lambda attached: settings_of(attached, verify=True, until=0, overrides=[])


def short(weights: bytes) -> str:
    return sha256(weights).hexdigest()[:16]


def refused(use: Use, attached: Attached) -> str:
    with pytest.raises(CommandError) as error:
        use(attached)
    return str(error.value)


def test_the_weights_that_it_began_with_are_used(use: Use, tmp_path: Path) -> None:
    attached = pinned_run(tmp_path, kl=0.1, reference="fixed")
    assert attached.info.started.reference_hash == sha256(b"fixed weights").hexdigest()
    use(attached)


def test_a_model_that_was_overwritten_is_named_and_not_the_reference(use: Use, tmp_path: Path) -> None:
    """The reference is the model by default: one fault, told once."""
    attached = pinned_run(tmp_path, kl=0.1)
    assert attached.info.started.reference_hash == attached.info.started.initial_weights_hash
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    said = refused(use, attached)
    assert said.endswith(
        f": model.path: {tmp_path}/model holds other weights than r-1 began with (sha256 {short(b'other weights')}, "
        f"the log has {short(b'first weights')}): put those back, or begin a new run with these"
    )
    assert "loss.reference" not in said


def test_another_config_of_the_same_weights_is_named(use: Use, tmp_path: Path) -> None:
    attached = pinned_run(tmp_path)
    (tmp_path / "model" / "config.json").write_text('{"rope_theta": 20000.0}')
    assert f"model.path: {tmp_path}/model holds another config.json than r-1 began with: put that back" in refused(use, attached)


def test_a_model_of_another_shape_is_the_fault_and_not_the_reference_that_fits_it_no_more(use: Use, tmp_path: Path) -> None:
    attached = pinned_run(tmp_path, kl=0.1, reference="fixed")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    (tmp_path / "model" / "config.json").write_text('{"rope_theta": 10000.0, "num_hidden_layers": 4}')
    said = refused(use, attached)
    assert "model holds other weights than r-1 began with" in said
    assert "model holds another config.json than r-1 began with" in said
    assert "loss.reference" not in said


def test_a_reference_that_was_overwritten_is_named(use: Use, tmp_path: Path) -> None:
    attached = pinned_run(tmp_path, kl=0.1, reference="fixed")
    (tmp_path / "fixed" / "model.safetensors").write_bytes(b"other weights")
    said = refused(use, attached)
    assert said.endswith(
        f": loss.reference: {tmp_path}/fixed holds other weights than r-1 began with (sha256 {short(b'other weights')}, "
        f"the log has {short(b'fixed weights')}): put those back, or begin a new run with these"
    )


def test_all_that_is_gone_is_named(use: Use, tmp_path: Path) -> None:
    attached = pinned_run(tmp_path, kl=0.1, reference="fixed")
    for name in ("model", "fixed"):
        (tmp_path / name / "model.safetensors").unlink()
    said = refused(use, attached)
    for key, name in (("model.path", "model"), ("loss.reference", "fixed")):
        assert f"{key}: {tmp_path}/{name} holds the weights no more that r-1 began with: put them back" in said


def test_a_run_that_pinned_no_reference_is_used_as_it_was(use: Use, tmp_path: Path) -> None:
    """Begun before references were pinned, or its loss looks at none."""
    attached = pinned_run(tmp_path, kl=0.1, reference="fixed")
    (tmp_path / "fixed" / "model.safetensors").write_bytes(b"other weights")
    use(Attached(attached.settings, replace(attached.info, started=replace(attached.info.started, reference_hash=""))))


def test_a_replay_with_weights_of_its_own_looks_at_those_alone(tmp_path: Path) -> None:
    attached = pinned_run(tmp_path, kl=0.1, reference="fixed")
    for name in ("model", "fixed"):
        (tmp_path / name / "model.safetensors").write_bytes(b"other weights")
    own = model(tmp_path / "own", b"my weights")
    overrides = [f"model.path={own}", f"loss.reference={own}"]
    found = settings_of(attached, verify=False, until=0, overrides=overrides)
    assert (found.model_path, found.reference) == (str(own), str(own))
