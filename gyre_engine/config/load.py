"""TOML to Config and back to JSON. Errors name all that is wrong, each with the file, the line, the key and the remedy."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gyre_engine.config.build import Builder
from gyre_engine.config.limits import blames, problems
from gyre_engine.config.problems import ConfigError, Problem, Source, is_name, keys_of
from gyre_engine.config.schema import Config

_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in the TOML file `path`, with `section.key=value` overrides. Relative paths are taken from the file's folder."""
    source = read_source(path, overrides)
    return _resolve_paths(_config(_parse(source), overrides, source), path.parent.resolve())


def read_source(path: Path, overrides: Sequence[str] = ()) -> Source:
    """The text of a config file, in which the places of its keys can be found. Raises ConfigError where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8: name the experiment's TOML file") from error
    return Source(path, text, _given(overrides))


def _parse(source: Source) -> dict[str, Any]:
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        text = str(error)
        position = _POSITION.search(text)
        line = f", line {position[1]}, column {position[2]}" if position and position[1] else ""
        place = line or " (at its end)"
        raise ConfigError(f"config error in {source.path}{place}: not valid TOML: {_POSITION.sub('', text)}") from error


def config_from_json(text: str) -> Config:
    """The config that a RunStarted event carries."""
    builder = Builder()
    config: Config = builder.build(Config, _lifted(json.loads(text)))
    if builder.problems:
        raise ConfigError(*builder.problems, source=Source(Path("run-started"), ""))
    return config


def _lifted(tree: dict[str, Any]) -> dict[str, Any]:
    """Where there was one policy yet, it stood under [scheduling]."""
    if "scheduling" in tree:
        old = tree.pop("scheduling")
        tree["schedule"] = {"policy": "paper", "slack": old.get("slack", 1.0)}
    return tree


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """`config` with `section.key=value` overrides."""
    return _config(json.loads(to_json(config)), overrides, Source(Path("--set"), "", _given(overrides)))


def _config(tree: dict[str, Any], overrides: Sequence[str], source: Source) -> Config:
    """The Config of a tree of plain values. Raises one ConfigError with everything that is wrong."""
    wrong = [problem for override in overrides for problem in _override(tree, override)]
    builder = Builder()
    config: Config = builder.build(Config, tree)
    wrong += builder.problems
    wrong += [problem for problem in problems(config) if not blames(problem, builder.suspects)]
    if wrong:
        raise ConfigError(*wrong, source=source)
    return config


def to_json(config: Config) -> str:
    """The whole config as JSON with sorted keys. librdkafka settings that carry secrets and passwords in URLs are left out."""
    tree = dataclasses.asdict(config)
    secret = re.compile(r"password|secret|token|key$", re.IGNORECASE)
    rd = tree["kafka"]["librdkafka"]
    tree["kafka"]["librdkafka"] = {k: ("***" if secret.search(k) else v) for k, v in rd.items()}
    tree["clickhouse"]["url"] = masked_url(tree["clickhouse"]["url"])
    return json.dumps(tree, sort_keys=True)


def masked_url(url: str) -> str:
    """The URL without its password."""
    return re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", url)


def config_hash(pinned: str) -> str:
    """Hash that derived ids carry, of the JSON as the run's start pinned it: keys that a later version adds change nothing."""
    return hashlib.blake2b(pinned.encode(), digest_size=16).hexdigest()


def _given(overrides: Sequence[str]) -> Iterable[str]:
    return [override.partition("=")[0].strip() for override in overrides]


def _override(tree: dict[str, Any], override: str) -> list[Problem]:
    """Put the override into the tree; what is wrong with how it is written."""
    name, sign, value = override.partition("=")
    keys = [str(key) for key in keys_of(name)]
    if not sign or len(keys) < 2 or not is_name(name):
        return [Problem(f"write section.key=value, e.g. batch.groups=8; got {override!r}", (keys_of(name),))]
    inner: Any = tree
    for depth, key in enumerate(keys[:-1], 1):
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            parent = ".".join(keys[:depth])
            return [Problem(f"{parent} is no section whose keys can be set", (keys_of(name),))]
    inner[keys[-1]] = _plain(value)
    return []


def _plain(value: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        return tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return value


def _resolve_paths(config: Config, folder: Path) -> Config:
    def absolute(path: str) -> str:
        return path if not path or "://" in path else str((folder / path).resolve())

    model = dataclasses.replace(config.model, path=absolute(config.model.path))
    cells = dataclasses.replace(config.cells, script=absolute(config.cells.script))
    data = tuple(dataclasses.replace(d, path=absolute(d.path), name=d.name or Path(d.path).name) for d in config.data)
    loss = dataclasses.replace(config.loss, reference=absolute(config.loss.reference))
    return dataclasses.replace(config, model=model, cells=cells, data=data, loss=loss)
