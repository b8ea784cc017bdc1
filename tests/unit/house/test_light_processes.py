"""Processes that wait for the network never pay for torch: held on their real import graph."""

import subprocess
import sys

import pytest

LIGHT = [
    "producers.proxy.process",
    "producers.runner.process",
    "producers.cells.process",
    "streams.process",
    "consumers.scheduler.process",
    "consumers.scoring.process",
    "consumers.analytics.process",
    "consumers.reporting.process",
    "consumers.trainer.process",
    "infra.cli.main",
]
HEAVY = ("torch", "transformers", "megatron")


@pytest.mark.parametrize("module", LIGHT)
def test_it_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, importlib; importlib.import_module({module!r}); print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
