"""Runs mini-swe-agent on one task inside the sandbox and tells by the exit code how it ended: `python driver.py CONFIG`."""

from __future__ import annotations

import json
import sys
from typing import Any

TURN_BUDGET, CONTEXT_LIMIT, ENDPOINT_LOST = 10, 12, 75
_CODES = {
    "Submitted": 0,
    "LimitsExceeded": TURN_BUDGET,
    "ContextWindowExceededError": CONTEXT_LIMIT,
    "APIConnectionError": ENDPOINT_LOST,
    "InternalServerError": ENDPOINT_LOST,
    "ServiceUnavailableError": ENDPOINT_LOST,
    "RateLimitError": ENDPOINT_LOST,
    "Timeout": ENDPOINT_LOST,
}


def build(config: dict[str, Any]) -> Any:
    """The agent with the package's own prompts."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import get_config_from_spec
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    own = get_config_from_spec("mini.yaml")
    own["agent"].pop("mode", None)
    agent = {**own["agent"], "step_limit": config["max_turns"], "cost_limit": 0}
    environment = {**own["environment"], "cwd": config["workdir"], "timeout": int(config["tool_limit_s"])}
    model = {**own["model"], "model_name": f"openai/{config['model']}"}
    return DefaultAgent(LitellmModel(**model), LocalEnvironment(**environment), **agent)


def main(path: str) -> int:
    """The exit code for how the agent ended."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    agent = build(config)
    try:
        status = str(agent.run(config["instruction"]).get("exit_status", ""))
    except Exception as error:  # what the package raises is how it says what ended it
        status = type(error).__name__
        print(f"{status}: {error}", file=sys.stderr)
    print(json.dumps({"type": "result", "status": status, "turns": agent.n_calls}), flush=True)
    return _CODES.get(status, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
