"""`mini` with a model that calls no tools: a file keeps what it answers, and the check speaks as the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from producers.runner.harnesses import HarnessError, HarnessSettings, find_harness, mini_agent

CHECK = "grep -qx HELLO answer.txt || echo 'In capitals, please.'"
CONFIG: dict[str, Any] = {
    "model": "m", "system": "", "instruction": "Write hello in capitals.", "tools": [], "answer": "answer.txt", "check": CHECK,
    "check_limit_s": 5.0, "check_chars": 400, "max_turns": 3, "token_budget": 0,
}  # fmt: skip


class Said:
    """An endpoint that gives these answers, and keeps what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[list[dict[str, Any]]] = []

    def ask(self, body: bytes) -> Any:
        self.asked.append(mini_agent.loads(body.decode())["messages"])
        return {"choices": [{"message": {"role": "assistant", "content": self.answers.pop(0)}}]}


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def work(monkeypatch: pytest.MonkeyPatch, said: Said, **config: object) -> tuple[int, int]:
    """(exit code, turns) of an agent that is answered so."""
    monkeypatch.setattr(mini_agent, "Endpoint", lambda _: said)
    state = {"turns": 0, "tokens": 0}
    with pytest.raises(mini_agent.End) as end:
        mini_agent.work({**CONFIG, **config}, state)
    return end.value.code, state["turns"]


def test_what_the_check_says_is_the_next_turn_of_the_user(monkeypatch: pytest.MonkeyPatch, workspace: Path) -> None:
    said = Said("hello", "HELLO")
    assert work(monkeypatch, said) == (mini_agent.COMPLETED, 2)
    assert [message["content"] for message in said.asked[1]] == ["Write hello in capitals.", "hello", "In capitals, please."]
    assert said.asked[1][-1]["role"] == "user"
    assert (workspace / "answer.txt").read_text() == "HELLO"


def test_the_last_answer_stays_when_the_turns_are_used_up(monkeypatch: pytest.MonkeyPatch, workspace: Path) -> None:
    assert work(monkeypatch, Said("one", "two"), max_turns=2) == (mini_agent.TURN_BUDGET, 2)
    assert (workspace / "answer.txt").read_text() == "two"


def test_without_a_check_the_first_answer_is_the_last(monkeypatch: pytest.MonkeyPatch, workspace: Path) -> None:
    assert work(monkeypatch, Said("hello"), check="") == (mini_agent.COMPLETED, 1)
    assert (workspace / "answer.txt").read_text() == "hello"


def test_without_a_file_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, workspace: Path) -> None:
    assert work(monkeypatch, Said("hello"), answer="") == (mini_agent.COMPLETED, 1)
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x"])
def test_a_file_outside_of_the_workspace_is_refused_before_the_run(path: str) -> None:
    with pytest.raises(HarnessError, match=r"harness\.answer is .*below the workspace"):
        find_harness(HarnessSettings(answer=path))
