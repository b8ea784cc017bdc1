"""The Debian packages of the Soft-RoCE VM, pinned by their SHA-256 in `packages.sha256`.

`python -m infra.rdma.pins` prints what Debian 12 offers now (paths below its mirror): review it, then check it in.
"""

from __future__ import annotations

import lzma
import re
import urllib.request
from collections.abc import Iterable
from pathlib import Path

MIRRORS = ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")
SUITES = ((MIRRORS[1], "bookworm-security"), (MIRRORS[0], "bookworm"), (MIRRORS[0], "bookworm-updates"))
ROOTS = ("linux-image-amd64", "busybox-static", "iproute2", "ibverbs-providers", "ibverbs-utils", "perftest", "python3-pyverbs",
         "python3-numpy", "python3-msgpack", "python3-pytest", "python3-xxhash", "qemu-system-x86")  # fmt: skip
UNUSED = {"adduser", "debconf", "debconf-2.0", "dpkg", "initramfs-tools", "install-info", "init-system-helpers", "kmod", "linux-base",
          "linux-initramfs-tool", "lsb-base", "media-types", "perl", "perl-base", "tzdata"}  # fmt: skip
"""What is only needed to install packages, not to unpack and run them."""
PINNED = Path(__file__).with_name("packages.sha256")

Package = dict[str, str]


def pinned(file: Path = PINNED) -> dict[str, str]:
    """Path of a package below its mirror -> its SHA-256, as checked in."""
    pairs = (line.split() for line in file.read_text().splitlines() if line.strip())
    return {path: digest for digest, path in pairs}


def closure(packages: dict[str, Package], roots: Iterable[str]) -> list[Package]:
    """The named packages with all that they depend on, each once, without UNUSED. The first alternative that exists is taken."""
    provided = {name: p["Package"] for p in packages.values() for name in _names(p.get("Provides", ""))}
    found: dict[str, Package] = {}
    todo = list(roots)
    while todo:
        name = todo.pop()
        name = name if name in packages else provided.get(name, name)
        if name in found or name in UNUSED or name not in packages:
            continue
        found[name] = packages[name]
        for field in ("Pre-Depends", "Depends"):
            for alternatives in found[name].get(field, "").split(","):
                names = _names(alternatives.replace("|", ","))
                todo += [next((n for n in names if n in packages), names[0])] if names else []
    return sorted(found.values(), key=lambda p: p["Filename"])


def _names(field: str) -> list[str]:
    return [re.split(r"[ :(]", part.strip())[0] for part in field.split(",") if part.strip()]


def _index() -> dict[str, Package]:
    """All packages of the suites; a later suite replaces what an earlier one has."""
    packages: dict[str, Package] = {}
    for mirror, suite in SUITES:
        with urllib.request.urlopen(f"{mirror}/dists/{suite}/main/binary-amd64/Packages.xz", timeout=60) as answer:  # noqa: S310
            text = lzma.decompress(answer.read()).decode()
        for block in text.split("\n\n"):
            fields = (line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(" "))
            package = dict(fields)
            if "Package" in package:
                packages[package["Package"]] = package
    return packages


def main() -> None:
    """Print the pins of what is offered now."""
    for package in closure(_index(), ROOTS):
        print(f"{package['SHA256']}  {package['Filename']}")


if __name__ == "__main__":
    main()
