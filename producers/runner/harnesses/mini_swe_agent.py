"""`mini-swe-agent`: the package of that name, through litellm, from Gyre's own environment (mounted read-only)."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from gyre_engine.events.executions import Ending, ToolReturned
from gyre_engine.sandbox import Exit, Mount
from gyre_engine.tasks import Task
from producers.runner.harnesses import mini_swe_driver as driver
from producers.runner.harnesses.port import Endpoint, HarnessError, HarnessSettings, Launch, Trouble

_OUTCOMES: Mapping[int, Ending | Trouble] = {
    0: Ending.COMPLETED,
    driver.TURN_BUDGET: Ending.TURN_BUDGET,
    driver.CONTEXT_LIMIT: Ending.CONTEXT_LIMIT,
    driver.ENDPOINT_LOST: Trouble.ENDPOINT_LOST,
}


class MiniSweAgent:
    """Started as `python mini_swe_driver.py config.json`; needs seconds to import litellm."""

    speaks_unix = False

    def __init__(self, settings: HarnessSettings) -> None:
        if importlib.util.find_spec("minisweagent") is None:
            raise HarnessError("the harness mini-swe-agent needs its package: `pip install mini-swe-agent`")
        self._settings = settings

    def launch(self, task: Task, endpoint: Endpoint, folder: str, workdir: str) -> Launch:
        config = {
            "model": endpoint.model, "base_url": endpoint.base_url, "workdir": workdir,
            "instruction": task.instruction.strip(), "max_turns": self._settings.max_turns,
            "tool_limit_s": self._settings.tool_limit_s,
        }  # fmt: skip
        files = {"config.json": json.dumps(config).encode(), "driver.py": Path(driver.__file__).read_bytes()}
        env = {
            "OPENAI_API_KEY": endpoint.key, "OPENAI_API_BASE": endpoint.base_url, "OPENAI_BASE_URL": endpoint.base_url,
            "MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/mini-swe-agent",  # noqa: S108 - private in the sandbox
            "LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_COST_TRACKING": "ignore_errors",
        }  # fmt: skip
        packages = Path(sys.prefix).resolve()
        mounts = () if str(packages).startswith("/usr") else (Mount(packages, str(packages)),)
        return Launch((sys.executable, f"{folder}/driver.py", f"{folder}/config.json"), env, files, mounts)

    def outcome(self, exit: Exit) -> Ending | Trouble:
        return _OUTCOMES.get(exit.code, Trouble.CRASHED)

    def tool_results(self, execution: str, exit: Exit) -> list[ToolReturned]:
        return []
