"""Harnesses by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from producers.runner.harnesses.claude_code import ClaudeCode
from producers.runner.harnesses.codex import Codex
from producers.runner.harnesses.command import Command
from producers.runner.harnesses.mini import Mini
from producers.runner.harnesses.mini_swe_agent import MiniSweAgent
from producers.runner.harnesses.port import Harness, HarnessError, HarnessSettings
from producers.runner.harnesses.qwen_code import QwenCode

_HARNESSES: Mapping[str, Callable[[HarnessSettings], Harness]] = {
    "mini": Mini,
    "mini-swe-agent": MiniSweAgent,
    "claude-code": ClaudeCode,
    "codex": Codex,
    "qwen-code": QwenCode,
    "command": Command,
}


def find_harness(settings: HarnessSettings) -> Harness:
    """The harness that `settings.name` names. Raises HarnessError."""
    if settings.name not in _HARNESSES:
        raise HarnessError(f"there is no harness {settings.name!r}: harness.name is one of {', '.join(_HARNESSES)}")
    return _HARNESSES[settings.name](settings)
