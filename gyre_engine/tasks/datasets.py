"""Where the tasks of a source lie: folders of task folders as Harbor keeps them, one task alone, or a registry.json.

What lies elsewhere (in git, in Harbor's registry) is never fetched here: the error names Harbor's own command that does it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_DEPTH = 4
"""How far below a source's folder tasks are looked for."""
_NAMED = 3


class DataError(ValueError):
    """Data sources that cannot be used; the text names the source and the remedy."""


def task_folders(path: Path) -> dict[str, Path]:
    """The tasks at `path` by name: the folder's, for nested ones its way from `path`. Raises DataError.

    `path` may be a registry.json, followed by #NAME or #NAME@VERSION where it holds several data sets.
    """
    file, _, wanted = str(path).partition("#")
    if Path(file).is_file():
        return _registered(Path(file), wanted)
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: set data.path to a folder of task folders")
    if is_task(path):
        return {path.name: path}
    found = {folder.relative_to(path).as_posix(): folder for folder in _below(path, _DEPTH)}
    _check_manifest(path, found)
    if not found:
        raise DataError(f"{path} has no task folders (task.toml, instruction.md, tests/test.sh)")
    return found


def is_task(folder: Path) -> bool:
    """Whether the folder is meant to be a task."""
    return (folder / "task.toml").exists() or (folder / "instruction.md").exists()


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.name.startswith("."):
            continue
        if is_task(path):
            yield path
        elif depth > 1 and not path.is_symlink():
            yield from _below(path, depth - 1)


def _check_manifest(folder: Path, found: Mapping[str, Path]) -> None:
    """Every task that dataset.toml lists is there, under its package's name or its folder's."""
    path = folder / "dataset.toml"
    if not path.is_file():
        return
    listed = [str(task.get("name", "")) for task in _tables(_toml(path), "tasks", path)]
    here = {name for task in found.values() for name in _names(task)}
    if missing := [name for name in listed if name not in here and name.rpartition("/")[2] not in here]:
        raise DataError(
            f"{path} lists {_some(missing)}, which {'are' if len(missing) > 1 else 'is'} not in {folder}: "
            f"`harbor download {missing[0]} -o {folder}` fetches one"
        )


def _names(task: Path) -> tuple[str, ...]:
    """The names under which a manifest may list the task."""
    package = _toml(task / "task.toml").get("task") if (task / "task.toml").is_file() else None
    return (task.name, str(package.get("name", ""))) if isinstance(package, dict) else (task.name,)


def _registered(file: Path, wanted: str) -> dict[str, Path]:
    """The tasks of one data set of a registry.json; their paths are taken from the file's folder."""
    data_set = _data_set(file, wanted)
    tasks = _tables(data_set, "tasks", file)
    name = f"{data_set.get('name')}@{data_set.get('version')}"
    if hosted := [str(task.get("name")) for task in tasks if task.get("git_url")]:
        raise DataError(
            f"{file}: of {name}, {_some(hosted)} lie in git repositories: fetch them with "
            f"`harbor download {name} --registry-path {file} -o FOLDER` and set data.path to that folder"
        )
    found = {str(task.get("name")): (file.parent / str(task.get("path", ""))).resolve() for task in tasks}
    if missing := [task for task, folder in found.items() if not is_task(folder)]:
        raise DataError(f"{file}: of {name}, {_some(missing)} are not where it says, e.g. {found[missing[0]]}")
    if not found:
        raise DataError(f"{file}: {name} has no tasks")
    return found


def _data_set(file: Path, wanted: str) -> Mapping[str, Any]:
    try:
        sets = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is no registry.json: {error}") from error
    if not isinstance(sets, list) or not all(isinstance(each, dict) for each in sets):
        raise DataError(f"{file} is no registry.json: it must be a list of data sets")
    fitting = [each for each in sets if wanted in ("", each.get("name"), f"{each.get('name')}@{each.get('version')}")]
    if len(fitting) == 1:
        found: Mapping[str, Any] = fitting[0]
        return found
    names = ", ".join(f"{each.get('name')}@{each.get('version')}" for each in sets)
    raise DataError(f"{file} has {len(fitting)} data sets {wanted!r}: set data.path to {file}#NAME@VERSION, one of {names}")


def _tables(tree: Mapping[str, Any], key: str, file: Path) -> list[Mapping[str, Any]]:
    tables = tree.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise DataError(f"{file}: {key} must be a list of tables")
    return tables


def _toml(file: Path) -> dict[str, Any]:
    """A task's own errors are told when it is read: here what cannot be read is empty."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if file.name == "dataset.toml":
            raise DataError(f"{file} cannot be read: {error}") from error
        return {}


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
