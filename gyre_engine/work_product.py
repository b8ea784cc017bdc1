"""Work products: the folder that an agent left behind, as a tar that says the same for the same files.

Agents are not trusted: links that lead out of the folder are dropped and named, never followed, when packing and when
unpacking; devices, pipes and sockets are dropped too. Names, sizes, permissions and contents count; owners and times do not.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class WorkProductError(ValueError):
    """A work product that is not what was kept, or cannot be unpacked; the text says what and where."""


@dataclass(frozen=True, slots=True)
class WorkProduct:
    """`data`: the tar. `dropped`: paths that were left out, with the reason."""

    data: bytes
    dropped: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def pack(root: Path, *, limit_bytes: int = 1 << 30) -> WorkProduct:
    """The tree below `root`. Files beyond `limit_bytes` in all are dropped and named. Nothing may write to it meanwhile."""
    buffer, dropped, left = io.BytesIO(), [], limit_bytes
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in _walk(root, ""):
            try:
                left -= _add(tar, name, path, left)
            except _Dropped as reason:
                dropped.append(f"{name}: {reason}")
    return WorkProduct(buffer.getvalue(), tuple(dropped))


class _Dropped(Exception):
    """Why a path is left out."""


def _walk(folder: Path, prefix: str) -> list[tuple[str, Path]]:
    """(name, path) of everything below, sorted, links not followed."""
    if not os.access(folder, os.R_OK | os.X_OK):
        os.chmod(folder, 0o700)  # an agent can take our right to read; the folder is still ours
    found = []
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        name = f"{prefix}{entry.name}"
        found.append((name, Path(entry.path)))
        if entry.is_dir(follow_symlinks=False):
            found += _walk(Path(entry.path), f"{name}/")
    return found


def _add(tar: tarfile.TarFile, name: str, path: Path, left: int) -> int:
    """Adds one entry and returns its size."""
    info, status = tarfile.TarInfo(name), os.lstat(path)
    info.mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        if not stays_inside(name, info.linkname):
            raise _Dropped(f"a link to {info.linkname}, outside of the workspace")
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISREG(status.st_mode):
        return _add_file(tar, info, path, status, left)
    else:
        raise _Dropped("neither a file, a folder nor a link")
    tar.addfile(info)
    return 0


def _add_file(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path, status: os.stat_result, left: int) -> int:
    if status.st_size > left:
        raise _Dropped(f"{status.st_size} bytes, beyond the limit of a work product")
    if not os.access(path, os.R_OK):
        os.chmod(path, 0o600)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        info.size = status.st_size
        tar.addfile(info, file)
    return status.st_size


def stays_inside(name: str, target: str) -> bool:
    """Whether a link called `name` with this target ends in the tree, by its text alone (no link is resolved).

    Links to programs of the host's /usr are the same in every sandbox and pass (virtual environments have them).
    """
    if target.startswith("/"):
        return posixpath.normpath(target).startswith(("/usr/", "/bin/"))
    return not posixpath.normpath(posixpath.join(posixpath.dirname(name), target)).startswith("..")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """`refused`: what was not written since it is no plain file, folder or inner link; `left_out`: what `keep` did not want."""

    refused: tuple[str, ...]
    left_out: tuple[str, ...]


def unpack(data: bytes, root: Path, keep: Callable[[str], bool] = lambda name: True) -> Unpacked:
    """Write the tree below the empty folder `root`, as far as `keep` says yes to an entry's name.

    Folders and files first, links last, so that no file is ever written through a link.
    Raises WorkProductError or OSError (a full disk).
    """
    refused: list[str] = []
    left_out: list[str] = []
    links: list[tarfile.TarInfo] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for info in tar:
                if not keep(info.name):
                    left_out.append(info.name)
                elif not _safe_name(info.name) or not (info.isreg() or info.isdir() or info.issym()):
                    refused.append(f"{info.name}: not a plain file, folder or link of the workspace")
                elif info.issym():
                    links.append(info)
                else:
                    _write(tar, info, root / info.name)
    except tarfile.TarError as error:
        raise WorkProductError(f"the work product is not a tar: {error}") from error
    refused += [refusal for info in links if (refusal := _link(info, root))]
    return Unpacked(tuple(refused), tuple(left_out))


def _link(info: tarfile.TarInfo, root: Path) -> str:
    """Make the link; returns why not, or nothing."""
    if not stays_inside(info.name, info.linkname):
        return f"{info.name}: a link to {info.linkname}, outside of the workspace"
    (root / info.name).symlink_to(info.linkname)
    return ""


def _safe_name(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/") and name != ""


def _write(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> None:
    if info.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    source = tar.extractfile(info)
    if source is None:
        raise WorkProductError(f"{info.name} has no content in the work product")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, info.mode | 0o600), "wb") as file:
        while chunk := source.read(1 << 20):
            file.write(chunk)


def remove_tree(folder: Path) -> None:
    """Delete a workspace, whatever rights the agent took from its own files. Nothing else may use it."""
    if not os.path.lexists(folder):
        return
    for path, folders, _ in os.walk(folder):
        for name in folders:
            inner = os.path.join(path, name)
            if not os.path.islink(inner) and not os.access(inner, os.W_OK | os.X_OK | os.R_OK):
                os.chmod(inner, 0o700)
    shutil.rmtree(folder)
