"""The Soft-RoCE VM's packages: which they are, that only pinned bytes are unpacked, and how a run in it is told from one that died."""

import hashlib
import io
import os
import tarfile

import pytest

from infra.rdma import fetch, vm
from infra.rdma.pins import closure, pinned


def package(name, **fields):
    return {"Package": name, "Filename": f"pool/{name}.deb", **fields}


def test_a_closure_holds_what_is_needed_once_and_the_first_alternative_that_exists():
    every = [
        package("a", **{"Depends": "b (>= 2), gone | c:any, d | e", "Pre-Depends": "f"}),
        package("b", Depends="a, perl, virtual"),
        *(package(name) for name in "cdef"),
        package("perl"),
        package("real", Provides="other, virtual (= 3)"),
    ]
    found = closure({p["Package"]: p for p in every}, ["a"])
    assert [p["Package"] for p in found] == ["a", "b", "c", "d", "f", "real"]


def test_the_pins_name_every_part_of_the_vm_once():
    names = [path.rpartition("/")[2].partition("_")[0] for path in pinned()]
    assert len(names) == len(set(names))
    needed = {"qemu-system-x86", "python3-pyverbs", "python3-xxhash", "perftest", "busybox-static", "libc6", "ibverbs-providers"}
    assert needed <= set(names)
    assert any(name.startswith("linux-image-6") for name in names)
    assert all(len(bytes.fromhex(digest)) == 32 for digest in pinned().values())


def deb(files):
    """A .deb as dpkg lays it out: an ar archive of debian-binary, control and data."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": data.getvalue()}
    heads = {name: f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(part):<10}`\n".encode() for name, part in parts.items()}
    return b"!<arch>\n" + b"".join(heads[name] + part + b"\n" * (len(part) % 2) for name, part in parts.items())


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror and pins in folders of this test; what it serves is what the function it gives is called with."""
    served = {}
    monkeypatch.setattr(fetch, "MIRRORS", (tmp_path.as_uri() + "/main", tmp_path.as_uri() + "/security"))
    monkeypatch.setattr(fetch, "SNAPSHOTS", fetch.MIRRORS)
    monkeypatch.setattr(fetch, "PINNED", tmp_path / "pins")
    monkeypatch.setattr(fetch, "pinned", lambda: pinned(tmp_path / "pins"))

    def serve(path, content, digest=None):
        served[path] = digest or hashlib.sha256(content).hexdigest()
        place = tmp_path / ("security" if path.startswith("pool/updates/") else "main") / path
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        (tmp_path / "pins").write_text("".join(f"{d}  {p}\n" for p, d in served.items()))

    return serve


def test_packages_are_fetched_once_and_unpacked_without_what_the_vm_does_not_use(mirror, tmp_path):
    mirror("pool/a_1.deb", deb({"./usr/bin/a": b"program", "./usr/share/doc/a/README": b"text", "../out": b"escapes"}))
    mirror("pool/updates/b_1.deb", deb({"./lib/b.so": b"library"}))
    unpacked = fetch.root(tmp_path / "cache")
    found = {str(p.relative_to(unpacked)): p.read_bytes() for p in unpacked.rglob("*") if p.is_file()}
    assert found == {"usr/bin/a": b"program", "lib/b.so": b"library"}
    assert fetch.root(tmp_path / "cache") == unpacked


def test_bytes_that_are_not_those_that_were_pinned_are_not_unpacked(mirror, tmp_path):
    mirror("pool/a_1.deb", deb({"./usr/bin/a": b"program"}), digest="00" * 32)
    with pytest.raises(fetch.NotToBeHad, match=r"pool/a_1\.deb is not the file that pins pins"):
        fetch.root(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("root-*"))


def test_a_package_that_the_mirrors_dropped_is_named_with_the_remedy(mirror, tmp_path):
    mirror("pool/a_1.deb", b"")
    os.remove(tmp_path / "main/pool/a_1.deb")
    with pytest.raises(fetch.NotToBeHad, match=r"cannot fetch pool/a_1\.deb .* renew the pins"):
        fetch.root(tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "rc", "output"),
    [("hi\nGYRE-VM-RC=0\n[ 9.1] reboot: Power down", 0, "hi\n"), ("GYRE-VM-RC=90\n", 90, ""), ("x", None, "x")],
)
def test_a_vm_that_died_is_told_from_a_command_that_failed(text, rc, output):
    assert vm._outcome(text) == vm.Outcome(rc, output)
