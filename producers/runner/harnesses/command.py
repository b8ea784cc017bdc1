"""`command`: any command line, with {base_url}, {api_key}, {model}, {workspace} and {instruction} filled in, quoted for the shell.

The same values stand in the environment as GYRE_BASE_URL, GYRE_API_KEY, GYRE_MODEL, GYRE_WORKSPACE and GYRE_INSTRUCTION (a file),
and under the names that most clients read.
"""

from __future__ import annotations

import re
import shlex

from gyre_engine.events.executions import Ending, ToolReturned
from gyre_engine.sandbox import Exit
from gyre_engine.tasks import Task
from producers.runner.harnesses.port import Endpoint, HarnessError, HarnessSettings, Launch, Trouble

_NAMES = ("base_url", "api_key", "model", "workspace", "instruction")


def fill(command: str, values: dict[str, str]) -> str:
    """The command with its {names} replaced, each quoted. Other braces are left alone."""
    return re.sub(r"\{(\w+)\}", lambda m: shlex.quote(values[m[1]]) if m[1] in values else m[0], command)


class Command:
    """Written to a file that the shell reads, so that neither key nor instruction shows in the shell's arguments."""

    speaks_unix = False

    def __init__(self, settings: HarnessSettings) -> None:
        if not settings.command.strip():
            names = ", ".join(f"{{{name}}}" for name in _NAMES)
            raise HarnessError(f'harness.name is "command" but harness.command is empty: give the command line, with {names}')
        self._command = settings.command

    def launch(self, task: Task, endpoint: Endpoint, folder: str, workdir: str) -> Launch:
        instruction = task.instruction.strip()
        given = (endpoint.base_url, endpoint.key, endpoint.model, workdir, instruction)
        script = fill(self._command, dict(zip(_NAMES, given, strict=True)))
        files = {"command.sh": script.encode() + b"\n", "instruction.md": instruction.encode()}
        return Launch(("/bin/sh", f"{folder}/command.sh"), environment(endpoint, workdir, folder), files)

    def outcome(self, exit: Exit) -> Ending | Trouble:
        return Ending.COMPLETED if exit.code == 0 else Trouble.CRASHED

    def tool_results(self, execution: str, exit: Exit) -> list[ToolReturned]:
        return []


def environment(endpoint: Endpoint, workdir: str, folder: str) -> dict[str, str]:
    """The endpoint under the names of the OpenAI and Anthropic clients and our own."""
    root = endpoint.base_url.removesuffix("/v1")
    return {
        "OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_BASE": endpoint.base_url, "OPENAI_API_KEY": endpoint.key,
        "OPENAI_MODEL": endpoint.model, "ANTHROPIC_BASE_URL": root, "ANTHROPIC_API_KEY": endpoint.key,
        "ANTHROPIC_MODEL": endpoint.model, "GYRE_BASE_URL": endpoint.base_url, "GYRE_API_KEY": endpoint.key,
        "GYRE_MODEL": endpoint.model, "GYRE_WORKSPACE": workdir, "GYRE_INSTRUCTION": f"{folder}/instruction.md",
        "IS_SANDBOX": "1",
    }  # fmt: skip
