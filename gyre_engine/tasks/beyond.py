"""What Harbor's task format says beyond what the local sandbox follows: what `needs` a container, and what is `ignored`.

The list is Harbor's own (0.26: harbor/models/task/config.py and paths.py). A field is followed by `task`, or it is named here;
none is dropped unseen. A Harbor environment follows them all, but for what docs/harnesses.md names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_NETWORK = ("network_mode", "allowed_hosts")
_FOLLOWED: Mapping[str, frozenset[str]] = {
    "agent": frozenset({"timeout_sec"}),
    "verifier": frozenset({"timeout_sec", "env", "environment_mode"}),  # it always runs apart
    "environment": frozenset(
        {"docker_image", "env", "memory", "memory_mb", "workdir", "os", "gpus", "tpu", "mcp_servers"}
    ),  # the last four are needs
    "solution": frozenset(),
}
_TOLD = frozenset({"version", "schema_version", "source", "task", "metadata", "steps", "multi_step_reward_strategy"})
"""What only describes the task, or belongs to tasks of several steps, which are refused."""
_OWN_USER, _NO_NETWORK = "the sandbox has a user of its own", "the sandbox has no network"
_IGNORED: Mapping[str, Mapping[str, str]] = {
    "agent": {"user": _OWN_USER, **dict.fromkeys(_NETWORK, _NO_NETWORK)},
    "verifier": {"user": _OWN_USER, **dict.fromkeys(_NETWORK, _NO_NETWORK)},
    "environment": {
        **dict.fromkeys((*_NETWORK, "allow_internet"), _NO_NETWORK),
        "build_timeout_sec": "nothing is built",
        "cpus": "the sandbox shares the machine's processors",
        "storage": "the sandbox shares the machine's disk",
        "storage_mb": "the sandbox shares the machine's disk",
        "gpu_types": "any will do",
        "skills_dir": "a harness here reads its own",
        "healthcheck": "nothing runs in the sandbox before the agent",
    },
    "solution": {"env": "the reference solution is not run"},
}
_FILES = (
    ("environment/docker-compose.yaml", "several services"),
    ("tests/Dockerfile", "an image of its own for the verifier"),
    ("tests/docker-compose.yaml", "an image of its own for the verifier"),
    ("trajectory.json", "a conversation to begin from"),
)


def needs(folder: Path, toml: Mapping[str, Any]) -> tuple[str, ...]:
    """What the task asks for that no local sandbox gives, in words."""
    return (*_needed_fields(toml), *(f"{name} ({why})" for name, why in _FILES if (folder / name).exists()))


def _needed_fields(toml: Mapping[str, Any]) -> Iterator[str]:
    environment, verifier = toml.get("environment", {}), toml.get("verifier", {})
    for key in ("gpus", "tpu", "mcp_servers"):
        if environment.get(key):
            yield f"environment.{key}"
    for key in ("environment", "collect"):
        if verifier.get(key):
            yield f"verifier.{key}"


def ignored(folder: Path, toml: Mapping[str, Any], kept: tuple[str, ...]) -> tuple[str, ...]:
    """What of the task has no effect in the local sandbox, each with the reason. `kept`: top-level folders that are the work."""
    unknown = [f"{key}: not a key of Harbor's" for key in toml if key not in {*_TOLD, *_FOLLOWED, "artifacts"}]
    files = [f"{p}: tests/ is mounted whole" for p in (".harborignore", "tests/.harborignore") if (folder / p).exists()]
    return (*_ignored_fields(toml), *_ignored_artifacts(toml, kept), *files, *unknown)


def _ignored_fields(toml: Mapping[str, Any]) -> Iterator[str]:
    for section, followed in _FOLLOWED.items():
        for key in toml.get(section, {}):
            if key in _IGNORED[section]:
                yield f"{section}.{key}: {_IGNORED[section][key]}"
            elif key not in followed and f"{section}.{key}" not in ("verifier.environment", "verifier.collect"):
                yield f"{section}.{key}: not a key of Harbor's"


def _ignored_artifacts(toml: Mapping[str, Any], kept: tuple[str, ...]) -> Iterator[str]:
    artifacts = toml.get("artifacts", [])
    for entry in artifacts if isinstance(artifacts, list) else []:
        source = str(entry.get("source", "") if isinstance(entry, dict) else entry)
        if source.startswith("/") and source.split("/")[1] not in kept:
            yield f"artifacts {source}: not below a folder of the workspace"
