"""What a verifier wrote: reward.json or reward.txt in its own log folder, read without following anything."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from consumers.scoring.port import EvaluationBroken, Score

_LIMIT = 64 << 10


def read_reward(folder: Path, weights: Mapping[str, float], bounds: tuple[float, float]) -> Score:
    """The score in `folder`; as in Harbor, reward.json counts where both are there.

    Raises EvaluationBroken where it is missing or nonsense.
    """
    if (text := _read(folder, "reward.json")) is not None:
        return _weighted(_parts(text), weights, bounds)
    if (text := _read(folder, "reward.txt")) is not None:
        return Score(_in_bounds("reward.txt", _number(text), bounds))
    raise EvaluationBroken("the verifier wrote neither /logs/verifier/reward.json nor reward.txt")


def _read(folder: Path, name: str) -> str | None:
    """A plain file's text; the folder or the file being a link, a pipe or a device is nonsense."""
    try:
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise EvaluationBroken(f"the verifier's log folder is gone or not a folder: {error.strerror}") from error
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EvaluationBroken(f"{name} cannot be read as a plain file: {error.strerror}") from error
    finally:
        os.close(inside)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise EvaluationBroken(f"{name} is not a plain file")
        return file.read(_LIMIT).decode(errors="replace")


def _number(text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        raise EvaluationBroken(f"reward.txt does not hold a number: {text.strip()[:60]!r}") from None


def _in_bounds(name: str, value: float, bounds: tuple[float, float]) -> float:
    if not math.isfinite(value) or not bounds[0] <= value <= bounds[1]:
        raise EvaluationBroken(f"{name}: the reward {value!r} is not between {bounds[0]:g} and {bounds[1]:g}")
    return value


def _parts(text: str) -> dict[str, float]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise EvaluationBroken(f"reward.json is not JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise EvaluationBroken(f"reward.json must be an object of numbers, got {text[:60]!r}")
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise EvaluationBroken(f"reward.json: {key} is not a finite number: {value!r}")
    return {str(key): float(value) for key, value in found.items()}


def _weighted(parts: Mapping[str, float], weights: Mapping[str, float], bounds: tuple[float, float]) -> Score:
    if len(parts) == 1 and not weights:
        (value,) = parts.values()
        return Score(_in_bounds("reward.json", value, bounds), parts)
    if not weights:
        raise EvaluationBroken(f"reward.json has several keys ({', '.join(sorted(parts))}): set scoring.weights")
    missing = sorted(set(weights) - set(parts))
    if missing:
        raise EvaluationBroken(f"reward.json lacks {', '.join(missing)}, which scoring.weights names")
    return Score(_in_bounds("reward.json", sum(weights[key] * parts[key] for key in sorted(weights)), bounds), parts)
