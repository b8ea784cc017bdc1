"""`claude-code`: Claude Code (npm: @anthropic-ai/claude-code), over Anthropic Messages.

Its own limits are set beyond what the proxy lets a call wait: that on a silent stream (which counts although pings come) and that
on a request. Sub-agents, titles and summaries are the policy's too. Nothing but the model endpoint is asked.
"""

from __future__ import annotations

import re
from typing import Any

from gyre_engine.events.executions import Ending, ToolReturned
from gyre_engine.sandbox import Exit
from gyre_engine.tasks import Task
from producers.runner.harnesses import clients
from producers.runner.harnesses.port import Endpoint, HarnessSettings, Launch, Trouble

NAME = "claude-code"
_MODELS = (
    "ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
)  # fmt: skip
_SWITCHES = (
    "IS_SANDBOX", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING", "DISABLE_INSTALLATION_CHECKS",
)  # fmt: skip
_WINDOW = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW")
_CONTEXT = re.compile(r"prompt is too long|maximum context length|context_length_exceeded|context limit", re.IGNORECASE)
_LOST = re.compile(
    r"API Error: (?:5\d\d|429|Connection|Request timed out|.*(?:terminated|socket|stream|fetch failed|ECONN))", re.IGNORECASE
)


class ClaudeCode:
    """Started as `claude --print` with the instruction on its standard input; its last line says how it ended."""

    speaks_unix = False

    def __init__(self, settings: HarnessSettings) -> None:
        self._settings = settings
        self._program = clients.installed(NAME, "@anthropic-ai/claude-code-*/claude")

    def launch(self, task: Task, endpoint: Endpoint, folder: str, workdir: str) -> Launch:
        command = (
            str(self._program), "--print", "--output-format", "json", "--dangerously-skip-permissions", "--strict-mcp-config",
            "--no-session-persistence", "--model", endpoint.model, "--max-turns", str(self._settings.max_turns),
        )  # fmt: skip
        patience = str(int(self._settings.call_limit_s * 1000))
        env = {
            **dict.fromkeys(_MODELS, endpoint.model), **dict.fromkeys(_SWITCHES, "1"),
            "ANTHROPIC_BASE_URL": endpoint.base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": endpoint.key,
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0", "API_TIMEOUT_MS": patience, "CLAUDE_STREAM_IDLE_TIMEOUT_MS": patience,
        }  # fmt: skip
        if self._settings.context:
            env |= dict.fromkeys(_WINDOW, str(self._settings.context))
        return clients.launch(task, folder, command, env, programs=(self._program,))

    def outcome(self, exit: Exit) -> Ending | Trouble:
        said = next((found for found in clients.records(exit) if found.get("type") == "result"), None)
        return Trouble.CRASHED if said is None else _ending(said)

    def tool_results(self, execution: str, exit: Exit) -> list[ToolReturned]:
        return []


def _ending(said: dict[str, Any]) -> Ending | Trouble:
    """From its result record."""
    if said.get("subtype") == "error_max_turns":
        return Ending.TURN_BUDGET
    text = " ".join([str(said.get("result") or ""), *map(str, said.get("errors") or [])])
    if not said.get("is_error"):
        return Ending.COMPLETED
    if _CONTEXT.search(text):
        return Ending.CONTEXT_LIMIT
    return Trouble.ENDPOINT_LOST if _LOST.search(text) else Trouble.CRASHED
