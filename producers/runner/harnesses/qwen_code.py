"""`qwen-code`: Qwen Code (npm: @qwen-code/qwen-code), over OpenAI Chat Completions.

Its own limit on a request counts from the question to the headers, which the proxy sends early; it is set beyond what the proxy
lets a call wait. Learning about the user between runs is off: each execution has a home of its own anyway.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gyre_engine.events.executions import Ending, ToolReturned
from gyre_engine.sandbox import Exit
from gyre_engine.tasks import Task
from producers.runner.harnesses import clients
from producers.runner.harnesses.port import Endpoint, HarnessSettings, Launch, Trouble

NAME = "qwen-code"
_USER = b"""const os = require("os"), known = os.userInfo;
const made = () => ({ username: "agent", uid: process.getuid(), gid: process.getgid(), homedir: os.homedir(), shell: "/bin/sh" });
os.userInfo = (...options) => { try { return known(...options); } catch { return made(); } };
require("module").syncBuiltinESMExports();
"""
"""It asks who its user is and ends where /etc/passwd does not know: a sandbox's user stands in no such file."""
_TURN_LIMIT = 53
"""Exit code of its FatalTurnLimitedError."""
_ERROR = re.compile(rb"\[API Error: ([^\]]*)")
_CONTEXT = re.compile(rb"maximum context length|context window", re.IGNORECASE)
_REFUSED = re.compile(rb"4(?!29)\d\d ")


class QwenCode:
    """Started as `node cli.js --yolo ...` with the instruction on its standard input."""

    speaks_unix = False

    def __init__(self, settings: HarnessSettings) -> None:
        self._settings = settings
        self._node = clients.node(NAME)
        self._program = clients.installed(NAME, "@qwen-code/qwen-code/cli.js")

    def launch(self, task: Task, endpoint: Endpoint, folder: str, workdir: str) -> Launch:
        command = (
            str(self._node), "--no-warnings", "--require", f"{folder}/user.cjs", str(self._program), "--yolo",
            "--auth-type", "openai", "--model", endpoint.model, "--output-format", "text",
            "--max-session-turns", str(self._settings.max_turns),
        )  # fmt: skip
        env = {
            "OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.key, "OPENAI_MODEL": endpoint.model,
            "QWEN_CODE_NO_RELAUNCH": "1",
        }  # fmt: skip
        prepare = f'mkdir "$HOME/.qwen"; cp {folder}/settings.json "$HOME/.qwen/"'
        files = {"settings.json": json.dumps(self._config()).encode(), "user.cjs": _USER}
        programs = (self._node, self._program.parent)
        return clients.launch(task, folder, command, env, programs=programs, prepare=prepare, files=files)

    def _config(self) -> dict[str, Any]:
        """Its settings.json. Times in milliseconds."""
        window = {"contextWindowSize": self._settings.context} if self._settings.context else {}
        return {
            "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "checkpointing": {"enabled": False}},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
            "model": {"generationConfig": {"timeout": int(self._settings.call_limit_s * 1000), **window}},
        }

    def outcome(self, exit: Exit) -> Ending | Trouble:
        if exit.code == 0:
            return Ending.COMPLETED
        return Ending.TURN_BUDGET if exit.code == _TURN_LIMIT else _failure(exit.output)

    def tool_results(self, execution: str, exit: Exit) -> list[ToolReturned]:
        return []


def _failure(output: bytes) -> Ending | Trouble:
    """From the last error that it printed; what is neither a refusal nor its own crash came from an endpoint that went away."""
    said = _ERROR.findall(output)
    if not said:
        return Trouble.CRASHED
    if _CONTEXT.search(said[-1]):
        return Ending.CONTEXT_LIMIT
    return Trouble.CRASHED if _REFUSED.match(said[-1]) else Trouble.ENDPOINT_LOST
