"""Harbor data sets are read as they are: nested folders, one task, dataset.toml, registry.json; what lies elsewhere is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gyre_engine.tasks import DataError, Source, load_catalog, task_folders


def write(folder: Path, toml: str = "") -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text(f"Do {folder}.")
    (folder / "tests" / "test.sh").write_text("#!/bin/sh\n")
    return folder


def test_folders_are_searched_and_tasks_named_by_their_way(tmp_path: Path) -> None:
    for name in ("one", "easy/two", "hard/deep/two", ".cache/three", "one/steps/four"):
        write(tmp_path / "set" / name)
    (tmp_path / "set" / "README.md").write_text("")
    assert list(task_folders(tmp_path / "set")) == ["easy/two", "hard/deep/two", "one"]
    catalog = load_catalog([Source("set", tmp_path / "set")])
    assert catalog.find("train", "set", "hard/deep/two").folder == tmp_path / "set" / "hard" / "deep" / "two"


def test_a_task_alone_is_a_source(tmp_path: Path) -> None:
    assert task_folders(write(tmp_path / "alone")) == {"alone": tmp_path / "alone"}


def test_what_a_manifest_lists_is_there_or_named(tmp_path: Path) -> None:
    write(tmp_path / "one", '[task]\nname = "org/first"\n')
    write(tmp_path / "second")
    listed = ["org/first", "org/second"]
    manifest = tmp_path / "dataset.toml"
    manifest.write_text(
        '[dataset]\nname = "org/set"\n' + "".join(f'[[tasks]]\nname = "{name}"\ndigest = "d"\n' for name in listed)
    )
    assert list(task_folders(tmp_path)) == ["one", "second"]
    manifest.write_text(manifest.read_text() + '[[tasks]]\nname = "org/third"\ndigest = "d"\n')
    with pytest.raises(DataError, match=r"dataset.toml lists org/third, which is not in .*`harbor download org/third -o"):
        task_folders(tmp_path)


def registry(folder: Path, *sets: dict[str, object]) -> Path:
    path = folder / "registry.json"
    path.write_text(json.dumps(sets))
    return path


def test_a_registry_names_local_tasks(tmp_path: Path) -> None:
    write(tmp_path / "tasks" / "a")
    write(tmp_path / "tasks" / "b")
    one = {"name": "set", "version": "1", "description": "", "tasks": [{"name": "a", "path": "tasks/a"}]}
    two = {**one, "version": "2", "tasks": [{"name": "bee", "path": "tasks/b"}]}
    assert task_folders(registry(tmp_path, one)) == {"a": tmp_path / "tasks" / "a"}
    path = registry(tmp_path, one, two)
    assert task_folders(Path(f"{path}#set@2")) == {"bee": tmp_path / "tasks" / "b"}
    assert Source("r", Path(f"{path}#set@2")).there and not Source("r", tmp_path / "x.json").there
    with pytest.raises(DataError, match=r"2 data sets 'set'.*#NAME@VERSION, one of set@1, set@2"):
        task_folders(Path(f"{path}#set"))


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"name": "g", "path": "x", "git_url": "https://e/x"}, r"set@1, g lie in git.*harbor download set@1 --registry-path"),
        ({"name": "g", "path": "nowhere"}, r"g are not where it says, e.g. .*nowhere"),
    ],
)
def test_a_registry_whose_tasks_lie_elsewhere_says_how_to_get_them(tmp_path: Path, task: dict[str, str], says: str) -> None:
    path = registry(tmp_path, {"name": "set", "version": "1", "description": "", "tasks": [task]})
    with pytest.raises(DataError, match=says):
        task_folders(path)


@pytest.mark.parametrize("text", ["{", "{}", "[3]"])
def test_what_is_no_registry_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "registry.json").write_text(text)
    with pytest.raises(DataError, match="is no registry.json"):
        task_folders(tmp_path / "registry.json")
