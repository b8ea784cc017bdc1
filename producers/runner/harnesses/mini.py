"""`mini`: Gyre's own small agent (mini_agent.py), compiled once and started without `site`."""

from __future__ import annotations

import functools
import json
import py_compile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from gyre_engine.events.executions import Ending, ToolReturned
from gyre_engine.sandbox import Exit, python_path
from gyre_engine.tasks import Task
from producers.runner.harnesses import mini_agent
from producers.runner.harnesses.port import Endpoint, HarnessError, HarnessSettings, Launch, Trouble

_SYSTEM = "You work in the current folder with the tools you have. When the task is done, answer without a tool call."
_OUTCOMES: Mapping[int, Ending | Trouble] = {
    mini_agent.COMPLETED: Ending.COMPLETED,
    mini_agent.TURN_BUDGET: Ending.TURN_BUDGET,
    mini_agent.TOKEN_BUDGET: Ending.TOKEN_BUDGET,
    mini_agent.CONTEXT_LIMIT: Ending.CONTEXT_LIMIT,
    mini_agent.ENDPOINT_LOST: Trouble.ENDPOINT_LOST,
}


@functools.cache
def _program() -> bytes:
    """The agent's byte code: compiling it anew for each execution would cost as much as starting Python."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder, "mini_agent.pyc")
        py_compile.compile(str(mini_agent.__file__), str(compiled), dfile="mini_agent.py", doraise=True, optimize=2)
        return compiled.read_bytes()


class Mini:
    """Started as `python3 -I -S mini_agent.pyc config.json`."""

    speaks_unix = True

    def __init__(self, settings: HarnessSettings) -> None:
        unknown = [name for name in settings.tools if name not in mini_agent.TOOLS]
        if unknown:
            raise HarnessError(f"mini has no tool {unknown[0]!r}: harness.tools may hold {', '.join(mini_agent.TOOLS)}")
        if settings.answer and (path := PurePosixPath(settings.answer)) and (path.is_absolute() or ".." in path.parts):
            raise HarnessError(f"harness.answer is {settings.answer!r}: give a file below the workspace, e.g. answer.txt")
        self._settings = settings

    def launch(self, task: Task, endpoint: Endpoint, folder: str, workdir: str) -> Launch:
        config = json.dumps(self._config(task, endpoint)).encode()
        argv = (python_path(), "-I", "-S", f"{folder}/mini_agent.pyc", f"{folder}/config.json")
        return Launch(argv, {"GYRE_API_KEY": endpoint.key}, {"mini_agent.pyc": _program(), "config.json": config})

    def _config(self, task: Task, endpoint: Endpoint) -> dict[str, Any]:
        of = self._settings
        return {
            "base_url": endpoint.base_url, "socket": endpoint.socket, "model": endpoint.model, "instruction": task.instruction,
            "system": of.system or _SYSTEM, "tools": list(of.tools), "answer": of.answer, "check": of.check,
            "check_limit_s": of.check_limit_s,
            "check_chars": of.check_chars, "tool_limit_s": of.tool_limit_s, "tool_chars": of.tool_chars,
            "max_turns": of.max_turns, "token_budget": of.token_budget, "patience_s": of.patience_s,
            "call_limit_s": of.call_limit_s,
        }  # fmt: skip

    def outcome(self, exit: Exit) -> Ending | Trouble:
        return _OUTCOMES.get(exit.code, Trouble.CRASHED)

    def tool_results(self, execution: str, exit: Exit) -> list[ToolReturned]:
        results = []
        for line in exit.output.splitlines():
            if line.startswith(b'{"type": "tool"'):
                try:
                    results.append(_tool_result(execution, json.loads(line)))
                except (ValueError, KeyError, TypeError):
                    continue  # the agent's own tools can print on its stdout: what is no record of ours is no record
        return results


def _tool_result(execution: str, record: Mapping[str, Any]) -> ToolReturned:
    return ToolReturned(
        execution=execution, tool_call=str(record["id"]), source="runner", content=str(record["content"]),
        nbytes=int(record["nbytes"]), failed=bool(record["failed"]), took_us=int(record["took_us"]),
    )  # fmt: skip
