"""A Harbor task directory, read once into types: task.toml, instruction.md, environment/, tests/, solution/."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre_engine.sandbox.policy import SYSTEM_FOLDERS
from gyre_engine.tasks.beyond import ignored, needs
from gyre_engine.tasks.dockerfile import Image, read_dockerfile

_RESERVED = SYSTEM_FOLDERS | {"logs", "tests", "solution"}
_SIZE = re.compile(r"\s*([\d.]+)\s*([KMGT]?)i?B?\s*", re.IGNORECASE)
_MEGABYTES = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1048576.0}
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


class TaskError(ValueError):
    """A task folder that cannot be used; the text names the folder and the remedy."""


@dataclass(frozen=True, slots=True)
class Task:
    """One query: what is asked, where the work happens, what judges it. Sizes in MB, times in seconds, 0: not said."""

    name: str
    folder: Path
    instruction: str
    image: Image
    agent_timeout_s: float = 0.0
    verifier_timeout_s: float = 600.0
    cpus: float = 0.0
    memory_mb: int = 0
    storage_mb: int = 0
    env: tuple[tuple[str, str], ...] = ()
    verifier_env: tuple[tuple[str, str], ...] = ()
    category: str = ""
    difficulty: str = ""
    needs: tuple[str, ...] = ()
    """Beyond the Dockerfile: what only a container gives."""
    ignored: tuple[str, ...] = ()
    """What the local sandbox does not follow, with the reason."""

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def solution(self) -> Path | None:
        """The reference solution's folder, if there is one."""
        folder = self.folder / "solution"
        return folder if folder.is_dir() else None

    @property
    def slices(self) -> tuple[str, ...]:
        """The top-level folders that the task uses: each is mounted into the sandbox from the workspace."""
        return _slices(self.image)


def _slices(image: Image) -> tuple[str, ...]:
    paths = [image.workdir, *image.folders, *(c.target for c in image.copies)]
    return tuple(sorted({path.split("/")[1] for path in paths}))


def read_task(folder: Path, name: str = "") -> Task:
    """The task in `folder`, called `name` or as the folder. Raises TaskError."""
    if not folder.is_dir():
        raise TaskError(f"{folder} is not a folder: a task is a folder with task.toml, instruction.md and tests/test.sh")
    toml = _toml(folder)
    if toml.get("steps"):
        raise TaskError(
            f"{folder}/task.toml has [[steps]]: tasks of several steps are not supported, split it into one task a step"
        )
    if str(_table(folder, toml, "environment").get("os", "linux")).lower() != "linux":
        raise TaskError(
            f"{folder}/task.toml: environment.os is {toml['environment']['os']!r}: only tasks for linux are supported"
        )
    instruction = _without_canary(_text(folder, "instruction.md", "write there what the agent is asked to do"))
    if not (folder / "tests" / "Dockerfile").exists():  # else that image brings it
        _text(folder, "tests/test.sh", "write a script that judges the work and writes /logs/verifier/reward.txt")
    return _task(name or folder.name, folder, toml, instruction)


def _without_canary(text: str) -> str:
    """Leading lines that mark benchmark data are not for the agent, as in Harbor."""
    lines = text.split("\n")
    while lines and _CANARY.fullmatch(lines[0].strip()):
        lines = lines[1:]
    return "\n".join(lines).lstrip("\n")


def _task(name: str, folder: Path, toml: Mapping[str, Any], instruction: str) -> Task:
    sections = ("agent", "verifier", "environment", "metadata", "solution")
    agent, verifier, environment, meta, _ = (_table(folder, toml, section) for section in sections)
    image = _image(folder, environment)
    return Task(
        name=name, folder=folder, instruction=instruction, image=image,
        agent_timeout_s=_number(folder, agent, "timeout_sec", 0.0),
        verifier_timeout_s=_number(folder, verifier, "timeout_sec", 600.0),
        cpus=_number(folder, environment, "cpus", 0.0),
        memory_mb=_megabytes(folder, environment, "memory"), storage_mb=_megabytes(folder, environment, "storage"),
        env=(*image.env, *_strings(folder, environment, "env")), verifier_env=_strings(folder, verifier, "env"),
        category=str(meta.get("category", "")), difficulty=str(meta.get("difficulty", "")), needs=needs(folder, toml),
        ignored=ignored(folder, toml, _slices(image)),
    )  # fmt: skip


def require_local(task: Task) -> None:
    """Raises TaskError where the task's environment cannot be had without docker, naming what is missing."""
    problems = [*(f"`{line}`" for line in task.image.missing), *task.needs]
    paths = [("WORKDIR", task.image.workdir), *(("COPY to", c.target) for c in task.image.copies)]
    for what, path in paths:
        if path.split("/")[1] in _RESERVED or path == "/":
            problems.append(f"{what} {path}, which is the sandbox's own")
    if problems:
        raise TaskError(
            f"{task.folder} needs docker for {', '.join(problems)}. "
            "Without docker only FROM, WORKDIR, COPY, ENV and `RUN mkdir` are followed, and the host's /usr stands in for the image: "
            "install on the host what these lines install and take them out, leave the task out, or run it in one of Harbor's "
            "environments (runner.environment)"
        )


def filled(task: Task, env: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Variables of task.toml with `${NAME}` and `${NAME:-default}` taken from our own environment. Raises TaskError."""
    found = {}
    for name, value in env:
        if (template := _TEMPLATE.fullmatch(value)) is None:
            found[name] = value
            continue
        given = os.environ.get(template[1], template[2])
        if given is None:
            raise TaskError(f"{task.folder}/task.toml: {name} is {value}, but the environment has no {template[1]}: export it")
        found[name] = given
    return found


def _toml(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(folder, "task.toml", "see the Harbor task format"))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{folder}/task.toml is not TOML: {error}") from error


def _text(folder: Path, name: str, remedy: str) -> str:
    try:
        text = (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskError(f"{folder} has no {name}: {remedy}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read {folder}/{name}: {error}") from error
    if not text.strip() and name != "task.toml":  # all of it has defaults
        raise TaskError(f"{folder}/{name} is empty: {remedy}")
    return text


def _table(folder: Path, toml: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = toml.get(key, {})
    if not isinstance(table, dict):
        raise TaskError(f"{folder}/task.toml: [{key}] must be a table, got {table!r}")
    return table


def _number(folder: Path, table: Mapping[str, Any], key: str, default: float) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise TaskError(f"{folder}/task.toml: {key} must be a number of at least 0, got {value!r}")
    return float(value)


def _megabytes(folder: Path, table: Mapping[str, Any], key: str) -> int:
    """`memory_mb = 2048` or the older `memory = "2G"`."""
    if f"{key}_mb" in table:
        return int(_number(folder, table, f"{key}_mb", 0.0))
    if key not in table:
        return 0
    match = _SIZE.fullmatch(str(table[key]))
    if match is None:
        raise TaskError(f'{folder}/task.toml: {key} must be a size such as "2G", got {table[key]!r}')
    return int(float(match[1]) * _MEGABYTES[match[2].upper()])


def _strings(folder: Path, table: Mapping[str, Any], key: str) -> tuple[tuple[str, str], ...]:
    inner = _table(folder, table, key)
    return tuple((str(name), str(value)) for name, value in inner.items())


def _image(folder: Path, environment: Mapping[str, Any]) -> Image:
    path = folder / "environment" / "Dockerfile"
    if path.exists():
        try:
            image = read_dockerfile(_text(folder, "environment/Dockerfile", "begin it with FROM"))
        except ValueError as error:
            raise error if isinstance(error, TaskError) else TaskError(f"{path}: {error}") from error
    else:
        named = str(environment.get("docker_image") or "")
        image = Image(base=named, missing=(f"image {named}",) if named else ())
    if workdir := environment.get("workdir"):
        return Image(image.base, str(workdir), image.env, image.copies, image.folders, image.missing)
    return image
