"""Harnesses by name: each a short file that says how it is started with endpoint, key and model, and how it says how it ended."""

from producers.runner.harnesses.port import Endpoint, Harness, HarnessError, HarnessSettings, Launch, Trouble
from producers.runner.harnesses.registry import find_harness

__all__ = ["Endpoint", "Harness", "HarnessError", "HarnessSettings", "Launch", "Trouble", "find_harness"]
