"""Work products: the same files say the same, and nothing that leads out is followed, kept or written."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.work_product import WorkProductError, pack, remove_tree, stays_inside, unpack


def test_owners_and_times_do_not_count_and_contents_do(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "x").mkdir(parents=True)
        (folder / "x" / "f").write_text("1")
        os.utime(folder / "x" / "f", (1, 1) if name == "a" else (9, 9))
    first = pack(tmp_path / "a").sha256
    assert first == pack(tmp_path / "b").sha256
    (tmp_path / "b" / "x" / "f").write_text("2")
    assert first != pack(tmp_path / "b").sha256


def test_what_was_packed_comes_back(tmp_path: Path) -> None:
    root = tmp_path / "in"
    (root / "app" / "empty").mkdir(parents=True)
    (root / "app" / "run.sh").write_bytes(b"#!/bin/sh\n\0\xff")
    (root / "app" / "run.sh").chmod(0o755)
    (root / "app" / "link").symlink_to("run.sh")
    work, out = pack(root), tmp_path / "out"
    out.mkdir()
    assert work.dropped == () and unpack(work.data, out).refused == ()
    assert (out / "app" / "run.sh").read_bytes() == b"#!/bin/sh\n\0\xff" and os.access(out / "app" / "run.sh", os.X_OK)
    assert os.readlink(out / "app" / "link") == "run.sh" and (out / "app" / "empty").is_dir()


def test_links_that_leave_and_special_files_are_dropped_and_named(tmp_path: Path) -> None:
    """C50."""
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    root = tmp_path / "in"
    root.mkdir()
    (root / "up").symlink_to("../secret")
    (root / "absolute").symlink_to(secret)
    (root / "folder").symlink_to(tmp_path)
    (root / "python").symlink_to("/usr/bin/python3")
    os.mkfifo(root / "pipe")
    work = pack(root)
    assert [d.split(":")[0] for d in work.dropped] == ["absolute", "folder", "pipe", "up"]
    assert b"the host's" not in work.data


def test_files_beyond_the_limit_are_dropped_and_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 60)
    (tmp_path / "b").write_bytes(b"x" * 60)
    (tmp_path / "c").write_bytes(b"x" * 30)
    assert [d.split(":")[0] for d in pack(tmp_path, limit_bytes=100).dropped] == ["b"]


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out"])
def test_a_forged_tar_writes_nothing_outside(tmp_path: Path, name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    root = tmp_path / "root"
    root.mkdir()
    assert len(unpack(buffer.getvalue(), root).refused) == 1
    assert list(root.iterdir()) == [] and not (tmp_path / "out").exists()


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    """A link first, then a file below its name: the file makes a real folder, the link is not made in its place."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        link = tarfile.TarInfo("d")
        link.type, link.linkname = tarfile.SYMTYPE, "e"
        tar.addfile(link)
        info = tarfile.TarInfo("d/f")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(FileExistsError):
        unpack(buffer.getvalue(), tmp_path)
    assert (tmp_path / "d" / "f").read_bytes() == b"x" and not (tmp_path / "d").is_symlink()


def test_bytes_that_are_no_tar_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkProductError, match="not a tar"):
        unpack(b"nonsense" * 100, tmp_path)


@given(st.lists(st.sampled_from(["a", "b", "..", "."]), min_size=1, max_size=6), st.integers(0, 3))
def test_a_link_stays_inside_as_a_walk_by_hand_says(parts: list[str], depth: int) -> None:
    """Walking the target from the link's folder, it never ends above the root."""
    level = [f"d{n}" for n in range(depth)]
    outside = 0
    for part in parts:
        if part == "..":
            if level:
                level.pop()
            else:
                outside += 1
        elif part != "." and outside:
            pass  # above the root, whatever it is called
        elif part != ".":
            level.append(part)
    name = "/".join([*(f"d{n}" for n in range(depth)), "link"])
    assert stays_inside(name, "/".join(parts)) == (outside == 0)


def test_a_folder_whose_rights_were_taken_can_be_packed_and_removed(tmp_path: Path) -> None:
    root = tmp_path / "in"
    (root / "closed" / "inner").mkdir(parents=True)
    (root / "closed" / "inner" / "f").write_text("x")
    (root / "closed" / "inner" / "f").chmod(0)
    (root / "closed" / "inner").chmod(0)
    (root / "closed").chmod(0)
    assert b"closed/inner/f" in pack(root).data
    remove_tree(root)
    assert not root.exists()
    remove_tree(root)
