"""How to start the real SGLang: on a CPU, in the environment beside this file (`uv sync --frozen` makes it), or on a GPU, in yours.

A command and an environment are all that is built here, and a link to our package where the server needs it: whoever starts
processes owns the process. The server speaks what `gyre_engine.sampling.sglang` expects: token ids only, incremental chunks,
log-probabilities at the request's temperature.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import gyre_engine
from gyre_engine.sandbox import find_bwrap

HERE = Path(__file__).parent
PYTHON = HERE / ".venv" / "bin" / "python"

RAW_LOGPROBS = "SGLANG_RETURN_ORIGINAL_LOGPROB"
"""Must stay unset: the trainer compares log-probabilities at the temperature that was sampled with."""
PAGE_TOKENS = 16
"""Tokens of a page of KV, where pages move; a tail shorter than one is computed again."""
PLAIN, MOVING = "sglang.launch_server", "gyre_engine.sampling.hicache.server"
ON_CPU = {
    "--device": "cpu",
    "--dtype": "float32",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--cuda-graph-backend-decode": "disabled",
    "--cuda-graph-backend-prefill": "disabled",
    "--mem-fraction-static": "0.9",
}
"""How much KV is held says `--max-total-tokens`; the fraction must leave room for it beside the weights, whoever else fills memory."""
SLEEPS, HIERARCHICAL = "--sleep-on-idle", "--enable-hierarchical-cache"
TELLS_EXPERTS = "--enable-return-routed-experts"
SWITCHES = ("--skip-tokenizer-init", "--skip-server-warmup", "--incremental-streaming-output")


@dataclass(frozen=True, slots=True)
class Launch:
    """argv and the whole environment of a server process."""

    argv: tuple[str, ...]
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class MovingKv:
    """KV that moves, through a HiCache backend of ours (docs/kv.md).

    scratch:        a folder of this server's own, for its sockets
    capacity_bytes: of host memory for pages, a rank
    secret_file:    what the cells of a run share; empty: each ticket carries its own key
    """

    scratch: str
    capacity_bytes: int
    secret_file: str = ""
    transfer: str = "tcp"
    host: str = "127.0.0.1"


def sglang_on_cpu(
    folder: str,
    version: str,
    *,
    host: str,
    port: int,
    environment: Mapping[str, str],
    kv_capacity: int = 32768,
    max_batch: int = 16,
    scratch: str = "",
    flags: Mapping[str, str] | None = None,
    record_routing: bool = False,
) -> Launch:
    """What starts a server of the model in `folder`. `environment` is the starter's own. Raises FileNotFoundError.

    scratch: a folder of this server's own, for one that says whom it has interrupted (gyre_engine.sampling.hicache.server)
    record_routing: it can be asked which experts computed a token
    """
    if not PYTHON.exists():
        raise FileNotFoundError(f"SGLang is not installed ({PYTHON} is missing): run `uv sync --frozen` in {HERE}")
    given = {**_served(folder, version, host, port, kv_capacity, max_batch), **ON_CPU, **(flags or {})}
    only_here = {
        "PYTHONPATH": os.pathsep.join([str(HERE / "cpu_stub"), *([str(_linked(Path(scratch)))] if scratch else [])]),
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    module = MOVING if scratch else PLAIN
    switches = (*SWITCHES, SLEEPS, *((TELLS_EXPERTS,) if record_routing else ()))
    return _launch(str(PYTHON), module, given, switches, {**_kept(environment), **only_here})


def sglang_on_gpu(
    python: str,
    folder: str,
    version: str,
    *,
    host: str,
    port: int,
    environment: Mapping[str, str],
    kv_capacity: int,
    max_batch: int,
    kv: MovingKv | None = None,
    flags: Mapping[str, str] | None = None,
    record_routing: bool = False,
) -> Launch:
    """What starts a server on this machine's GPU, with the Python of an environment that has SGLang for GPUs and msgpack and xxhash.

    flags: of SGLang's, beside those that are needed here or instead of them
    """
    given = {
        **_served(folder, version, host, port, kv_capacity, max_batch),
        **(_hicache(kv, version) if kv else {}),
        **(flags or {}),
    }
    env = _kept(environment) | {"TOKENIZERS_PARALLELISM": "false"}
    if kv:
        env["PYTHONPATH"] = str(_linked(Path(kv.scratch)))
    switches = (*SWITCHES, *((HIERARCHICAL,) if kv else ()), *((TELLS_EXPERTS,) if record_routing else ()))
    return _launch(python, MOVING if kv else PLAIN, given, switches, env)


def taken(arguments: Sequence[str]) -> tuple[str, ...]:
    """Those of `arguments` that Gyre gives SGLang itself, also shortened or as --flag=value: SGLang's parser takes both."""
    own = (*_served("", "", "", 0, 0, 0), *ON_CPU, *_hicache(MovingKv("", 0), ""), *SWITCHES, SLEEPS, HIERARCHICAL, TELLS_EXPERTS)
    flags = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    return tuple(flag for flag in flags if len(flag) > len("--") and any(name.startswith(flag) for name in own))


def no_gpu() -> str:
    """Empty where NVIDIA's driver sees a GPU, else what is missing."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "NVIDIA's driver (libcuda.so.1) is not on this machine"
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "NVIDIA's driver sees no GPU on this machine"
    return ""


def _served(folder: str, version: str, host: str, port: int, kv_capacity: int, max_batch: int) -> dict[str, str]:
    return {
        "--model-path": folder,
        "--weight-version": version,
        "--host": host,
        "--port": str(port),
        "--max-total-tokens": str(kv_capacity),
        "--max-running-requests": str(max_batch),
        "--log-level": "warning",
    }


def _hicache(kv: MovingKv, version: str) -> dict[str, str]:
    """SGLang writes pages through to our backend as soon as a request has ended, and waits for those that it finds there."""
    extra = {
        "backend_name": "gyre",
        "module_path": "gyre_engine.sampling.hicache.storage",
        "class_name": "GyreHiCache",
        "interface_v1": 1,
        "prefetch_threshold": PAGE_TOKENS,
        "sockets": str(Path(kv.scratch, "sockets")),
        "capacity": kv.capacity_bytes,
        "version": version,
        "transfer": kv.transfer,
        "host": kv.host,
        "secret_file": kv.secret_file,
    }
    return {
        "--page-size": str(PAGE_TOKENS),
        "--hicache-write-policy": "write_through",
        "--hicache-mem-layout": "page_first",
        "--hicache-io-backend": "kernel",
        "--hicache-storage-backend": "dynamic",
        "--hicache-storage-prefetch-policy": "wait_complete",
        "--hicache-storage-backend-extra-config": json.dumps(extra),
    }


def _linked(scratch: Path) -> Path:
    """A folder that holds our package and nothing else: SGLang's environment has other versions of all that stands beside it."""
    folder = scratch / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (folder / "gyre_engine").symlink_to(Path(gyre_engine.__path__[0]).resolve())
    return folder


def _launch(python: str, module: str, flags: Mapping[str, str], switches: tuple[str, ...], env: dict[str, str]) -> Launch:
    pairs = [word for flag in flags.items() for word in flag]
    return Launch((python, "-m", module, *pairs, *switches), env)


def _kept(own: Mapping[str, str]) -> dict[str, str]:
    """The starter's environment without what would change SGLang's Python, or what a log-probability means."""
    return {name: value for name, value in own.items() if name not in (RAW_LOGPROBS, "VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH")}


def ended_together(argv: Sequence[str]) -> tuple[str, ...]:
    """SGLang starts processes of its own: in a namespace of pids they end with it, whatever ends it. Raises SandboxUnavailable."""
    return (find_bwrap(), "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--die-with-parent", *argv)
