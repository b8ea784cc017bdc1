"""The Soft-RoCE VM's files: fetched once from Debian's mirrors into the cache, each checked against `packages.sha256`.

A package is unpacked without its scripts (ar, then tar), so neither root nor dpkg is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from infra.rdma.pins import MIRRORS, PINNED, pinned

SNAPSHOTS = tuple(f"http://snapshot.debian.org/archive/{name}/20261130T000000Z" for name in ("debian", "debian-security"))
"""Keep what the mirrors drop when a newer version is out."""
DOWNLOAD_LIMIT_S = 60.0
UNUSED = ("./usr/share/doc/", "./usr/share/man/", "./usr/share/locale/", "./usr/share/iso-codes/", "./usr/share/alsa/")


class NotToBeHad(RuntimeError):
    """A file that the VM needs cannot be fetched, or is not the one that was pinned; the text names it and the remedy."""


def cache_folder() -> Path:
    """Where downloads are kept: $GYRE_CACHE, else ~/.cache/gyre; below it `rdma`."""
    return Path(os.environ.get("GYRE_CACHE") or Path.home() / ".cache" / "gyre") / "rdma"


def root(cache: Path) -> Path:
    """The unpacked packages below `cache`, made where they are missing. Raises NotToBeHad."""
    packages = cache / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(PINNED.read_bytes()).hexdigest()[:16]
    unpacked = cache / f"root-{name}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not unpacked.exists():
            part = cache / "root.part"
            shutil.rmtree(part, ignore_errors=True)
            for path, digest in sorted(pinned().items()):
                _unpack(_fetched(packages, path, digest), part)
            part.rename(unpacked)
    return unpacked


def _fetched(folder: Path, path: str, digest: str) -> Path:
    """One package, from the folder or a mirror; always verified."""
    file = folder / Path(path).name
    if file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == digest:
        return file
    data = _download(path)
    if hashlib.sha256(data).hexdigest() != digest:
        raise NotToBeHad(f"{path} is not the file that {PINNED.name} pins: its SHA-256 differs. Do not run it.")
    part = file.with_suffix(".part")
    part.write_bytes(data)
    part.rename(file)
    return file


def _download(path: str) -> bytes:
    place = int(path.startswith("pool/updates/"))
    failures = []
    for mirror in (MIRRORS[place], SNAPSHOTS[place]):
        try:
            with urllib.request.urlopen(f"{mirror}/{path}", timeout=DOWNLOAD_LIMIT_S) as answer:  # noqa: S310
                return bytes(answer.read())
        except OSError as error:
            failures.append(f"{mirror}: {error}")
    raise NotToBeHad(
        f"cannot fetch {path} ({'; '.join(failures)}). Check the network; where Debian has a newer version, "
        f"renew the pins: python -m infra.rdma.pins > infra/rdma/{PINNED.name}"
    )


def _unpack(package: Path, into: Path) -> None:
    """The data of a .deb below `into`."""
    for name, data in _members(package.read_bytes()):
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                members = [m for m in tar if not m.name.startswith(UNUSED)]
                tar.extractall(into, members, filter=_as_user)  # noqa: S202  what comes in is pinned


def _as_user(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo | None:
    """Absolute links stand as they are (they hold inside the VM); owners are ours; no devices."""
    if member.isdev() or ".." in Path(member.name).parts or member.name.startswith("/"):
        return None
    return member.replace(uid=os.getuid(), gid=os.getgid(), uname="", gname="", mode=(member.mode or 0) | 0o200)


def _members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of an ar archive."""
    if not archive.startswith(b"!<arch>\n"):
        raise NotToBeHad("a package in the cache is no ar archive")
    at = 8
    while at + 60 <= len(archive):
        header = archive[at : at + 60]
        size = int(header[48:58])
        yield header[:16].decode().strip().rstrip("/"), archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
