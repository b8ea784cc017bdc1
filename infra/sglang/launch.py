"""How to start the real SGLang on a CPU, in the environment beside this file (`uv sync --frozen` makes it).

A command and an environment are all that is built here: whoever starts processes owns the process. The server speaks what
`gyre_engine.sampling.sglang` expects: token ids only, incremental chunks, log-probabilities at the request's temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = HERE / ".venv" / "bin" / "python"

RAW_LOGPROBS = "SGLANG_RETURN_ORIGINAL_LOGPROB"
"""Must stay unset: the trainer compares log-probabilities at the temperature that was sampled with."""


@dataclass(frozen=True, slots=True)
class Launch:
    """argv and the whole environment of a server process."""

    argv: tuple[str, ...]
    env: dict[str, str]


def sglang_on_cpu(
    folder: str,
    version: str,
    *,
    host: str,
    port: int,
    environment: Mapping[str, str],
    kv_capacity: int = 32768,
    max_batch: int = 16,
) -> Launch:
    """What starts a server of the model in `folder`. `environment` is the starter's own. Raises FileNotFoundError."""
    if not PYTHON.exists():
        raise FileNotFoundError(f"SGLang is not installed ({PYTHON} is missing): run `uv sync --frozen` in {HERE}")
    flags = {
        "--model-path": folder,
        "--weight-version": version,
        "--host": host,
        "--port": str(port),
        "--device": "cpu",
        "--dtype": "float32",
        "--attention-backend": "torch_native",
        "--sampling-backend": "pytorch",
        "--cuda-graph-backend-decode": "disabled",
        "--cuda-graph-backend-prefill": "disabled",
        "--mem-fraction-static": "0.1",
        "--max-total-tokens": str(kv_capacity),
        "--max-running-requests": str(max_batch),
        "--log-level": "warning",
    }
    switches = ("--skip-tokenizer-init", "--skip-server-warmup", "--sleep-on-idle", "--incremental-streaming-output")
    pairs = [word for flag in flags.items() for word in flag]
    return Launch((str(PYTHON), "-m", "sglang.launch_server", *pairs, *switches), _environment(environment))


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """One thread; the stub of the GPU kernels on the path; nothing that changes what a log-probability means."""
    kept = {name: value for name, value in own.items() if name not in (RAW_LOGPROBS, "VIRTUAL_ENV", "PYTHONHOME")}
    return {
        **kept,
        "PYTHONPATH": str(HERE / "cpu_stub"),
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
