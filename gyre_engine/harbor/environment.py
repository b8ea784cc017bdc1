"""Which of Harbor's environments is meant, and whether it can be used here."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import logging
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_DOCKERS_HOST = "host.docker.internal"
_QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HARBOR_TELEMETRY": "0"}
"""What Harbor and the litellm that it imports would ask of the network by themselves, and wait for."""


class HarborError(ValueError):
    """Harbor, or something that it is asked for, cannot be used; the text says why and the remedy."""


@dataclass(frozen=True, slots=True)
class HarborSettings:
    """Of [runner]. `environment`: a type of Harbor's or MODULE:CLASS; `keep`: further folders that are work."""

    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)
    keep: tuple[str, ...] = ()


def options(given: Mapping[str, str]) -> dict[str, Any]:
    """Options as Harbor wants them: what is JSON is read as such, as its own command line does."""
    return {name: _plain(value) for name, value in given.items()}


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def require() -> None:
    """Raises HarborError where Harbor is not installed. After it, modules of the current folder can be named, too.

    To be called before anything of Harbor's is imported.
    """
    if importlib.util.find_spec("harbor") is None:
        raise HarborError(
            f"Harbor is not installed. It needs Python 3.12 or newer (this is {platform.python_version()}): "
            "`uv sync --python 3.12 --extra harbor`"
        )
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def trial_environment(settings: HarborSettings, overlays: Iterable[Path] = ()) -> Any:
    """Harbor's own config of an environment. `overlays`: compose files beside the task's own."""
    from harbor.models.trial.config import EnvironmentConfig

    where = {"import_path" if ":" in settings.environment else "type": settings.environment}
    return EnvironmentConfig(**where, kwargs=dict(settings.options), extra_docker_compose=list(overlays))


def overlay(settings: HarborSettings, folder: Path, public_url: str = "") -> list[Path]:
    """For docker, a compose file beside the task's. The work is fetched before a stop, so a stop need not wait; and on Linux a
    container knows its host by name only where it is told, which `public_url` may ask for.
    """
    if settings.environment != "docker":
        return []
    main: dict[str, Any] = {"stop_grace_period": "0s"}
    if urlsplit(public_url).hostname == _DOCKERS_HOST:
        main["extra_hosts"] = [f"{_DOCKERS_HOST}:host-gateway"]
    path = folder / "overlay.json"
    path.write_text(json.dumps({"services": {"main": main}}))
    return [path]


def check_environment(settings: HarborSettings) -> None:
    """Raises HarborError: no such environment, an option that it does not know, no docker, no credentials."""
    require()
    try:
        factory = importlib.import_module("harbor.environments.factory").EnvironmentFactory
    except ImportError as error:
        raise HarborError(f"Harbor cannot be imported: {error}. Install it anew: `uv sync --extra harbor`") from error
    logging.getLogger("harbor.utils.logger").setLevel(logging.WARNING)  # it sets itself to DEBUG, in our log
    name, known = settings.environment, factory.registered_names()
    if ":" not in name and name not in known:
        raise HarborError(
            f"Harbor has no environment {name!r}{nearest(name, known)}: runner.environment is sandbox, MODULE:CLASS or one of "
            f"{', '.join(known)}"
        )
    try:
        config = trial_environment(settings)
        factory.run_preflight(config.type, config.import_path, config.kwargs)
    except (SystemExit, ImportError, OSError, TypeError, ValueError) as error:
        raise HarborError(f"runner.environment {name!r} cannot be used: {error}") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)`, or nothing."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
