"""What makes two machines comparable bit for bit: the processor, the builds, the thread count, and our own arithmetic.

Light: imports no torch.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("torch", "megatron-core", "numpy", "safetensors")

NUMERICS = 1
"""Of this program's own arithmetic. Raise it with every change after which the same calls and scores give other bytes on the same
machine: of admission's selection or advantages; of cutting, packing or a micro-step's fields (then DERIVATION_VERSION of
`batching.step_inputs`, too); of attention, losses, or the order in which anything is summed; of optimizer or schedules; of an image's
layout. A log from before is then told apart as not comparable, where it would seem to differ."""


def fingerprint(threads: int, device: str = "cpu") -> dict[str, str]:
    """The fingerprint of this machine and environment, for replicas that compute on `device`."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "machine": platform.machine(), "cpu": _cpu(), "threads": str(threads), "numerics": str(NUMERICS), **versions,
        **({"gpu": _gpu()} if device != "cpu" else {}),
    }  # fmt: skip


def same_numerics(logged: Mapping[str, str]) -> bool:
    """Whether this program computes as the one that left this fingerprint: no hardware makes up for that."""
    return logged.get("numerics") == str(NUMERICS)


def differences(logged: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """What differs, in words; empty where results must agree bit for bit."""
    names = sorted(set(logged) | set(here))
    return tuple(
        f"{name} was {logged.get(name, 'not recorded')}, here it is {here.get(name, 'unknown')}"
        for name in names
        if logged.get(name) != here.get(name)
    )


def _gpu(driver: Path = Path("/proc/driver/nvidia")) -> str:
    """Kinds of NVIDIA's GPUs here and their driver; "none" where there is none."""
    found = [line for file in sorted(driver.glob("gpus/*/information")) for line in _lines(file) if line.startswith("Model:")]
    kinds = sorted({line.split(":", 1)[1].strip() for line in found})
    return ", ".join([*kinds, *_lines(driver / "version")[:1]]) or "none"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _cpu() -> str:
    facts = dict(line.split(":", 1) for line in _lines(Path("/proc/cpuinfo")) if ":" in line)
    found = {k.strip(): v.strip() for k, v in facts.items()}
    vectors = sorted(f for f in found.get("flags", "").split() if f.startswith(("avx", "amx", "fma")))
    if not found:
        return platform.processor()
    return f"{found.get('model name', platform.processor())} {' '.join(vectors)}"
