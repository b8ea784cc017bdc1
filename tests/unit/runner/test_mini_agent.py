"""`mini`'s own parts: tools that tell the policy what it got wrong, JSON by the C halves, and what it may import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events.executions import Ending
from gyre_engine.sandbox import Exit
from producers.runner.harnesses import Endpoint, HarnessError, HarnessSettings, Trouble, find_harness, mini_agent
from producers.runner.harnesses.command import fill

CONFIG: dict[str, Any] = {
    "tools": ["write", "bash"], "check": "", "check_limit_s": 5.0, "check_chars": 400, "tool_limit_s": 5.0, "tool_chars": 200,
}  # fmt: skip


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def tool(name: str, arguments: object, **config: object) -> tuple[str, bool]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return mini_agent.call_tool({**CONFIG, **config}, {"name": name, "arguments": text})


def test_the_write_tool_is_offered_exactly_so() -> None:
    assert json.dumps(mini_agent.TOOLS["write"]) == (
        '{"type": "function", "function": {"name": "write", "description": "Write a file.", "parameters": {"type": "object", '
        '"properties": {"path": {"type": "string"}, "content": {"type": "string"}}, "required": ["path", "content"]}}}'
    )


def test_write_makes_folders_and_answers_ok(workspace: Path) -> None:
    assert tool("write", {"path": "a/b.txt", "content": "é\n"}) == ("ok", False)
    assert (workspace / "a" / "b.txt").read_text(encoding="utf-8") == "é\n"


def test_the_check_answers_for_a_write(workspace: Path) -> None:
    assert tool("write", {"path": "x", "content": "7"}, check="cat x; echo") == ("7", False)
    assert tool("write", {"path": "x", "content": "7"}, check="true") == ("ok", False)
    assert tool("write", {"path": "x", "content": "y" * 900}, check="cat x")[0] == "y" * 400
    slow = tool("write", {"path": "x", "content": ""}, check="sleep 30 & sleep 30", check_limit_s=0.2)
    assert slow == ("error: the check took over 0.2 s", True)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "link/x", "", ".", "x\0y"])
def test_a_path_outside_of_the_workspace_is_refused(workspace: Path, path: str) -> None:
    (workspace / "link").symlink_to("/tmp")
    content, failed = tool("write", {"path": path, "content": "x"})
    assert failed and content.startswith("error: ") and len(content) < 200
    assert not (workspace.parent / "x").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("read", {}, "error: there is no tool read"),
        ("write", '{"path": "x", ', "error: the arguments are not valid JSON"),
        ("write", "[1]", "error: the arguments are not a JSON object"),
        ("write", {"path": "x"}, "error: write needs a path and a content"),
        ("write", {"path": "x", "content": 5}, "error: write needs a path and a content"),
        ("bash", {"cmd": "ls"}, "error: bash needs a command"),
    ],
)
def test_what_the_policy_gets_wrong_is_told_to_it(name: str, arguments: object, says: str) -> None:
    assert tool(name, arguments) == (says, True)


def test_a_tool_that_is_not_offered_is_unknown() -> None:
    assert tool("bash", {"command": "echo hi"}, tools=["write"]) == ("error: there is no tool bash", True)


def test_bash_tells_output_and_exit_code_and_is_cut_and_stopped() -> None:
    assert tool("bash", {"command": "echo hi; echo ho >&2"}) == ("hi\nho", False)
    assert tool("bash", {"command": "echo hi; exit 3"}) == ("hi\n\n[exit code 3]", True)
    long, _ = tool("bash", {"command": "head -c 5000 /dev/zero | tr '\\0' x"})
    assert "characters ..." in long and len(long) < 260
    stopped, failed = tool("bash", {"command": "echo a; sleep 30"}, tool_limit_s=0.2)
    assert failed and stopped == "a\n\n[stopped after 0.2 s]"


def test_commands_do_not_see_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "GYRE_API_KEY" not in mini_agent.ENVIRON


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_its_json_is_json(value: object) -> None:
    assert json.loads(mini_agent.dumps(value)) == value
    assert mini_agent.loads(" " + json.dumps(value, indent=1) + "\n") == value


@pytest.mark.parametrize("text", ["", "{", '{"a":}', "1 2", "nul", '{"a": 1} x'])
def test_what_is_not_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        mini_agent.loads(text)


@pytest.mark.parametrize("text", ['{"path": "a\\q"}', '{"a": "\n', '{"a" 1}', '["\\u12"]', '{"a":', "nul", '"\\ud800'])
def test_what_is_not_json_is_a_value_error_also_where_json_was_never_imported(text: str) -> None:
    """As in the sandbox: CPython's scanner cannot raise its own error there."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(mini_agent.__file__).parent)!r}); import mini_agent\n"
        f"assert 'json' not in sys.modules\ntry: print(mini_agent.loads({text!r}))\nexcept ValueError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout.strip(), done.stderr) == ("refused", "")


def test_it_imports_nothing_that_takes_long() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(mini_agent.__file__).parent)!r}); import mini_agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"json", "socket", "re", "enum", "typing", "subprocess", "http", "urllib", "threading"}


def test_exit_codes_are_endings() -> None:
    mini = find_harness(HarnessSettings())
    codes = {
        0: Ending.COMPLETED,
        10: Ending.TURN_BUDGET,
        11: Ending.TOKEN_BUDGET,
        12: Ending.CONTEXT_LIMIT,
        75: Trouble.ENDPOINT_LOST,
    }
    for code, ending in {**codes, 1: Trouble.CRASHED, 76: Trouble.CRASHED, -9: Trouble.CRASHED}.items():
        assert mini.outcome(Exit(code, b"", False, True, 1.0)) is ending


def test_its_tool_results_are_read_and_other_output_is_not() -> None:
    output = (
        b'noise\n{"type": "tool", "id": "c1", "content": "ok", "nbytes": 2, "failed": false, "took_us": 5}\n{"type": "tool"\n'
    )
    (result,) = find_harness(HarnessSettings()).tool_results("g.0.0", Exit(0, output, False, True, 1.0))
    assert (result.execution, result.tool_call, result.source, result.content, result.took_us) == (
        "g.0.0",
        "c1",
        "runner",
        "ok",
        5,
    )


def test_harness_errors_name_the_remedy() -> None:
    with pytest.raises(HarnessError, match=r"no harness 'codexx'.*mini, mini-swe-agent, .*codex, .*command"):
        find_harness(HarnessSettings(name="codexx"))
    with pytest.raises(HarnessError, match=r"no tool 'read'.*write, bash"):
        find_harness(HarnessSettings(tools=("read",)))
    with pytest.raises(HarnessError, match=r"harness.command is empty"):
        find_harness(HarnessSettings(name="command"))


def test_a_command_line_is_filled_and_quoted() -> None:
    line = fill(
        "agent --key {api_key} -p {instruction} --json '{\"a\": 1}' {other}", {"api_key": "k", "instruction": "it's; rm -rf /"}
    )
    assert line == """agent --key k -p 'it'"'"'s; rm -rf /' --json '{"a": 1}' {other}"""


def test_a_key_is_in_no_repr() -> None:
    assert "s3cret" not in repr(Endpoint("http://x/v1", "m", "s3cret"))
