"""Logs of processes do not grow without end: they move on at a start and by size, and the oldest go."""

from pathlib import Path

import pytest

from infra.supervisor import logs as module
from infra.supervisor.logs import Logs


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    made = Logs(tmp_path / "logs", limit=10, kept=2)
    made.begin()
    return made


def test_each_start_begins_a_file_and_the_oldest_go(logs: Logs) -> None:
    for run in ("one", "two", "three", "four"):
        logs.begin()
        logs.file("proxy").write_text(run)
    assert contents(logs.folder) == {"proxy.log": "four", "proxy.log.1": "three", "proxy.log.2": "two"}


def test_logs_of_a_process_that_is_no_more_go_too(logs: Logs) -> None:
    logs.file("cell-7-engine").write_text("once")
    logs.begin()
    logs.begin()
    assert contents(logs.folder) == {"cell-7-engine.log.2": "once"}
    logs.begin()
    assert contents(logs.folder) == {}


def test_a_process_that_goes_on_writing_begins_anew_where_its_log_is_too_long(logs: Logs) -> None:
    with logs.file("proxy").open("ab", buffering=0) as writer:
        for text in (b"0123456789", b"!", b"abcdefghijk", b"end"):
            logs.bound()
            writer.write(text)
        assert contents(logs.folder) == {"proxy.log": "end", "proxy.log.1": "abcdefghijk", "proxy.log.2": "0123456789!"}
        writer.write(b"less of it")
        logs.bound()
    assert contents(logs.folder) == {"proxy.log": "", "proxy.log.1": "endless of it", "proxy.log.2": "abcdefghijk"}


def test_a_log_that_cannot_be_kept_is_emptied_all_the_same(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.shutil, "copyfile", full)
    logs.file("proxy").write_text("x" * 11)
    logs.bound()
    assert contents(logs.folder) == {"proxy.log": ""}
    assert "proxy.log was emptied without keeping what it held" in caplog.text


def test_the_tail_is_the_end_of_the_present_file(logs: Logs) -> None:
    assert logs.tail("proxy", 5) == ""
    logs.file("proxy").write_text("a long story\nshort\n")
    assert logs.tail("proxy", 6) == "short"
    assert logs.tail("proxy", 100) == "a long story\nshort"


RAISED = """2026-01-01 10:00:00 INFO proxy listens
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    one()
KeyError: 'renderer'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    two()
    ^^^^^
ValueError: no renderer of this name:
qwen33
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (RAISED, "ValueError: no renderer of this name:"),
        (RAISED + "2026-01-01 10:00:01 INFO proxy has ended\n", "ValueError: no renderer of this name:"),
        ("one\n" * 20_000 + RAISED, "ValueError: no renderer of this name:"),
        ("started\ncannot start it\n\n", "cannot start it"),
        (
            "java.lang.IllegalStateException: broken\n\tat kafka.Kafka.main(Kafka.scala)\n",
            "java.lang.IllegalStateException: broken",
        ),
        ("Traceback (most recent call last):\n", "Traceback (most recent call last):"),
        ("\n  \n", ""),
    ],
)
def test_the_last_error_is_one_line(logs: Logs, log: str, said: str) -> None:
    logs.file("proxy").write_text(log)
    assert logs.last_error("proxy") == said


def test_a_long_error_ends_with_a_whole_word_and_none_is_empty(logs: Logs) -> None:
    assert logs.last_error("proxy") == ""
    logs.file("proxy").write_text("ValueError: " + "word " * 200)
    said = logs.last_error("proxy")
    assert said.endswith(" word ...")
    assert len(said) <= 300
