"""`codex`: Codex CLI (npm: @openai/codex), over OpenAI Responses.

Its limit on a silent stream is set beyond what the proxy lets a call wait (comments do not count as life to it, events do), and its
own sandbox is off: it would need the rights that ours has taken away. It has no turn budget: `harness.max_turns` does not hold it,
the time limits do.
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

NAME = "codex"
_OFF = ("plugins", "apps", "browser_use", "computer_use", "remote_plugin", "memories")
"""Features that look for servers, browsers or screens."""
_CONTEXT = re.compile(r"context window|maximum context length|context_length_exceeded", re.IGNORECASE)
_LOST = re.compile(
    r"stream disconnected|exceeded retry limit|error sending request|unexpected status 5\d\d|connection|timed? ?out|overloaded",
    re.IGNORECASE,
)
_CONFIG = """model = {model}
model_provider = "gyre"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"
{window}
[analytics]
enabled = false
[feedback]
enabled = false
[history]
persistence = "none"
[features]
{features}
[model_providers.gyre]
name = "gyre"
base_url = {base_url}
env_key = "GYRE_API_KEY"
wire_api = "responses"
supports_websockets = false
stream_idle_timeout_ms = {patience_ms}
stream_max_retries = 10
"""


class Codex:
    """Started as `codex exec --json -` with the instruction on its standard input; its events say how it ended."""

    speaks_unix = False

    def __init__(self, settings: HarnessSettings) -> None:
        self._settings = settings
        self._program = clients.installed(NAME, "@openai/codex-*/vendor/*/bin/codex")

    def launch(self, task: Task, endpoint: Endpoint, folder: str, workdir: str) -> Launch:
        command = (str(self._program), "exec", "--json", "--skip-git-repo-check", "-")
        prepare = f'export CODEX_HOME="$HOME/.codex"; mkdir "$CODEX_HOME"; cp {folder}/config.toml "$CODEX_HOME/"'
        files = {"config.toml": self._config(endpoint).encode()}
        env = {"GYRE_API_KEY": endpoint.key}
        return clients.launch(task, folder, command, env, programs=(self._program.parents[1],), prepare=prepare, files=files)

    def _config(self, endpoint: Endpoint) -> str:
        """Its config.toml; JSON's strings are TOML's."""
        window = f"model_context_window = {self._settings.context}\n" if self._settings.context else ""
        features = "\n".join(f"{name} = false" for name in _OFF)
        return _CONFIG.format(
            model=json.dumps(endpoint.model), base_url=json.dumps(endpoint.base_url), window=window, features=features,
            patience_ms=int(self._settings.call_limit_s * 1000),
        )  # fmt: skip

    def outcome(self, exit: Exit) -> Ending | Trouble:
        said = next((found for found in clients.records(exit) if str(found.get("type")).startswith("turn.")), {})
        if said.get("type") == "turn.completed":
            return Ending.COMPLETED
        return _failure(said) if said.get("type") == "turn.failed" else Trouble.CRASHED

    def tool_results(self, execution: str, exit: Exit) -> list[ToolReturned]:
        return []


def _failure(said: dict[str, Any]) -> Ending | Trouble:
    """From its turn.failed event."""
    text = str((said.get("error") or {}).get("message", ""))
    if _CONTEXT.search(text):
        return Ending.CONTEXT_LIMIT
    return Trouble.ENDPOINT_LOST if _LOST.search(text) else Trouble.CRASHED
