"""What in an environment is the agent's work, and moving it: out of the agent's environment, into a fresh one.

The work is the environment's working directory, the artifacts that the task declares (and /logs/artifacts, where Harbor has agents
publish), and the folders of `runner.keep`. Each tree comes out into a new folder of the host, so nothing is ever written through a
link that the agent has left in another.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

PUBLISHED = "/logs/artifacts"
_WHOLE = ("/", "/proc", "/sys", "/dev", "/tests", "/solution", "/logs", "/logs/verifier", "/logs/agent")
"""Never work: the system, and what belongs to the verifier."""


class WorkError(ValueError):
    """What an environment cannot keep; the text says why and the remedy."""


async def work_folders(environment: Any, artifacts: Iterable[Any], keep: Iterable[str], *, here: bool = True) -> tuple[str, ...]:
    """Absolute paths, none inside another; `here`: the working directory too. Raises WorkError."""
    place = await _working_directory(environment)
    sources = [_source(entry, place) for entry in artifacts]
    wanted = {str(PurePosixPath(path)) for path in (PUBLISHED, *sources, *keep)}
    if here and place == "/" and not (sources or list(keep)):
        raise WorkError(
            "the environment's working directory is /, which cannot be kept whole: "
            "set [environment] workdir or artifacts in task.toml, or runner.keep"
        )
    return _outermost((wanted | ({place} if here else set())) - set(_WHOLE))


async def _working_directory(environment: Any) -> str:
    said = await environment.exec("pwd")
    here = (said.stdout or "").strip()
    if said.return_code != 0 or not here.startswith("/"):
        raise WorkError(f"the environment did not tell its working directory: {(said.stderr or said.stdout or '').strip()[:200]}")
    return here


def _source(entry: Any, here: str) -> str:
    """Where an artifact lies: task.toml has a path or a table. Raises WorkError."""
    service = None if isinstance(entry, str) else entry.service
    if service not in (None, "main"):
        raise WorkError(f"the artifact {entry.source} lies in the service {service!r}: only the agent's own container is kept")
    return str(PurePosixPath(here, entry if isinstance(entry, str) else entry.source))


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    chosen: list[str] = []
    for path in sorted(paths, key=lambda p: (p.count("/"), p)):
        if not any(path.startswith(f"{outer}/") for outer in chosen):
            chosen.append(path)
    return tuple(sorted(chosen))


async def fetch(environment: Any, paths: Iterable[str], root: Path) -> tuple[str, ...]:
    """What is there of `paths`, below the empty folder `root`, which stands for `/`; returns what was left out, with the reason.

    Raises whatever the environment raises.
    """
    dropped = []
    for path in paths:
        target = root / path.lstrip("/")
        match (await environment.exec(_kind(path), user="root")).stdout.strip():
            case "folder":
                target.mkdir(parents=True)
                await environment.download_dir(path, target)
            case "file":
                target.parent.mkdir(parents=True, exist_ok=True)
                await environment.download_file(path, target)
            case "link":
                dropped.append(f"{path.lstrip('/')}: a link in place of a folder that is kept")
    return tuple(dropped)


def _kind(path: str) -> str:
    """Says what is at `path`. What the agent has put a link there for is not followed."""
    place = shlex.quote(path)
    return f"if [ -L {place} ]; then echo link; elif [ -d {place} ]; then echo folder; elif [ -f {place} ]; then echo file; fi"


async def put(environment: Any, paths: Iterable[str], root: Path, stay: Iterable[str]) -> None:
    """Make `paths` of a fresh environment what `root` holds of them; its own files that fit a pattern of `stay` stay.

    Raises WorkError where the environment does not obey.
    """
    for path in paths:
        source = root / path.lstrip("/")
        if source.is_dir() and not source.is_symlink():
            await _command(environment, _emptied(path, stay))
            await environment.upload_dir(source, path)
            await _command(environment, f'chown -R "$(stat -c %u:%g {shlex.quote(path)})" {shlex.quote(path)}')
        elif source.is_file() and not source.is_symlink():
            await _command(environment, f"mkdir -p {shlex.quote(str(PurePosixPath(path).parent))}")
            await environment.upload_file(source, path)


def _emptied(path: str, stay: Iterable[str]) -> str:
    """Removes what is there, links and never their targets, but for the files that stay."""
    place, spared = shlex.quote(path), " ".join(f"! -name {shlex.quote(pattern)}" for pattern in stay)
    return (
        f"mkdir -p {place} && find {place} -mindepth 1 ! -type d {spared} -exec rm -f -- {{}} + "
        f"&& find {place} -mindepth 1 -depth -type d -exec rmdir -- {{}} + 2>/dev/null; test -d {place}"
    )


async def _command(environment: Any, command: str) -> None:
    done = await environment.exec(command, user="root")
    if done.return_code != 0:
        raise WorkError(f"`{command[:120]}` failed in the environment: {(done.stderr or done.stdout or '').strip()[:200]}")
