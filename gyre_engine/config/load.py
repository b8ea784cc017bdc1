"""TOML to Config and back to JSON. Every error names the file, the line, the key and the remedy."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gyre_engine.config.schema import Config


class ConfigError(ValueError):
    """A config that cannot be used; the text names the key and the remedy."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in the TOML file `path`, with `section.key=value` overrides. Relative paths are taken from the file's folder."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config error in {path}: {error}") from error
    for override in overrides:
        _override(tree, override)
    given = frozenset(o.partition("=")[0].strip() for o in overrides)
    config: Config = _build(Config, tree, (), _Source(path, text, given))
    check(config)
    return _resolve_paths(config, path.parent.resolve())


def config_from_json(text: str) -> Config:
    """The config that a RunStarted event carries."""
    config: Config = _build(Config, json.loads(text), (), _Source(Path("run-started"), ""))
    return config


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """`config` with `section.key=value` overrides."""
    tree = json.loads(to_json(config))
    for override in overrides:
        _override(tree, override)
    changed: Config = _build(Config, tree, (), _Source(Path("--set"), ""))
    check(changed)
    return changed


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


def config_hash(config: Config) -> str:
    """Hash that derived ids carry."""
    return hashlib.blake2b(to_json(config).encode(), digest_size=16).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    path: Path
    text: str
    given: frozenset[str] = frozenset()
    """Names that `--set` gave: the file is not to blame for them."""

    def where(self, keys: tuple[str, ...]) -> str:
        """`file, line n`, the line on which the last key stands below its section; or `--set`."""
        if ".".join(keys) in self.given:
            return f"--set {'.'.join(keys)}"
        section, key = (keys[-2] if len(keys) > 1 else ""), keys[-1]
        inside = section == ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if header := re.match(r"\s*\[+\s*([\w.-]+)\s*\]+", line):
                inside = header[1] == section or (section == "" and header[1] == key)
                if inside and section == "" and header[1] == key:
                    return f"{self.path}, line {number}"
            elif inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return f"{self.path}, line {number}"
        return str(self.path)


def _override(tree: dict[str, Any], override: str) -> None:
    name, sign, value = override.partition("=")
    keys = name.strip().split(".")
    if not sign or len(keys) < 2:
        raise ConfigError(f"--set {override}: write section.key=value, e.g. batch.groups=8")
    try:
        parsed = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = parsed


def _build(cls: Any, tree: Any, keys: tuple[str, ...], source: _Source) -> Any:
    where = f"[{'.'.join(keys)}]" if keys else "the file"
    if not isinstance(tree, dict):
        raise ConfigError(f"config error in {source.where(keys)}: {where} must be a table")
    hints, fields = typing.get_type_hints(cls), {f.name: f for f in dataclasses.fields(cls)}
    for key in tree:
        if key not in fields:
            raise ConfigError(f'config error in {source.where((*keys, key))}: {where} has no key "{key}"{_hint(key, fields)}')
    return cls(**{k: _value(hints[k], v, (*keys, k), source) for k, v in tree.items()})


def _hint(key: str, fields: dict[str, Any]) -> str:
    near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
    if not near:
        near = [f for f in fields if f.replace("_", "") == key.replace("_", "").replace("-", "")]
    if not near:
        return f". It has: {', '.join(sorted(fields))}"
    doc = fields[near[0]].metadata.get("doc", "")
    return f'. Did you mean "{near[0]}"' + (f" ({doc.rstrip('.')})" if doc else "") + "?"


def _value(hint: Any, value: Any, keys: tuple[str, ...], source: _Source) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, keys, source)
    if origin is tuple:
        if isinstance(value, list):
            return tuple(_value(args[0], v, keys, source) for v in value)
        raise _wrong_type(keys, source, "a list", value)
    if origin is dict:
        if isinstance(value, dict):
            return {k: _value(args[1], v, (*keys, k), source) for k, v in value.items()}
        raise _wrong_type(keys, source, "a table", value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise _wrong_type(keys, source, hint.__name__, value)
    return value


def _wrong_type(keys: tuple[str, ...], source: _Source, wanted: str, value: Any) -> ConfigError:
    name = ".".join(keys)
    return ConfigError(f"config error in {source.where(keys)}: {name} must be {wanted}, got {value!r} ({type(value).__name__})")


_AT_LEAST_ONE = (
    "run.steps", "cells.count", "cells.capacity", "cells.threads", "kafka.partitions", "batch.groups", "batch.group_size",
    "batch.mu", "batch.micro_step_tokens", "runner.max_concurrent", "runner.attempts", "selection.j_max", "scoring.attempts",
    "scoring.concurrent", "eval.samples", "harness.max_turns", "model.context", "sampling.max_tokens",
)  # fmt: skip
_ONE_OF = {
    "cells.engine": ("native", "sglang"),
    "runner.sandbox": ("bubblewrap", "none"),
    "harness.name": ("mini", "mini-swe-agent", "command"),
    "scheduling.policy": ("elastic",),
    "eval.split": ("train", "val", "test"),
    "eval.before": ("", "train", "val", "test"),
    "eval.after": ("", "train", "val", "test"),
    "loss.name": ("ppo", "grpo", "reinforce", "gspo"),
    "loss.aggregate": ("two-level", "token", "sequence"),
}


_RANGES = {
    # name: (least, most, whether the least itself is allowed)
    "optimizer.lr": (0.0, 10.0, False), "optimizer.beta1": (0.0, 0.999999, True), "optimizer.beta2": (0.0, 0.999999, True),
    "optimizer.eps": (0.0, 1.0, False), "optimizer.weight_decay": (0.0, 10.0, True), "optimizer.clip_norm": (0.0, 1e9, True),
    "loss.clip_low": (0.0, 0.999999, False), "loss.clip_high": (0.0, 100.0, False), "loss.importance_cap": (1.0, 1e6, True),
    "sampling.temperature": (0.0, 100.0, False), "sampling.top_p": (0.0, 1.0, False), "group.reward_range": (0.0, 1e9, False),
    "group.deviation_floor": (0.0, 1.0, False), "cells.lease_s": (1.0, 1e6, True), "runner.overall_timeout_s": (0.0, 1e9, False),
    "scheduling.slack": (0.0, 1.0, True), "run.checkpoint_keep": (0, 1e9, True),
}  # fmt: skip


def check(config: Config) -> None:
    """Raises ConfigError where a value cannot work."""
    for name, (least, most, inclusive) in _RANGES.items():
        value = _get(config, name)
        if not (least <= value <= most and (inclusive or value > least)):
            edge = "at least" if inclusive else "above"
            raise ConfigError(f"config error: {name} must be {edge} {least:g} and at most {most:g}, got {value}")
    for name in _AT_LEAST_ONE:
        if (value := _get(config, name)) < 1:
            raise ConfigError(f"config error: {name} must be at least 1, got {value}")
    for name, allowed in _ONE_OF.items():
        if (value := _get(config, name)) not in allowed:
            raise ConfigError(f"config error: {name} must be one of {', '.join(allowed)}; got {value!r}")
    _check_relations(config)


def _check_relations(config: Config) -> None:
    if config.batch.phi < 0:
        raise ConfigError(f"config error: batch.phi must be 0 or more, got {config.batch.phi}")
    if config.batch.group_size < config.group.min:
        raise ConfigError(
            f"config error: batch.group_size ({config.batch.group_size}) is below group.min ({config.group.min}): "
            "no group could train"
        )
    if config.sampling.max_tokens >= config.model.context:
        raise ConfigError(
            f"config error: sampling.max_tokens ({config.sampling.max_tokens}) leaves no room for a prompt in model.context "
            f"({config.model.context}): lower the one or raise the other"
        )
    if config.harness.name == "command" and not config.harness.command:
        raise ConfigError('config error: harness.name is "command" but harness.command is empty: give the command line to run')
    for source in config.data:
        if source.split not in ("train", "val", "test"):
            raise ConfigError(f"config error: data.split must be train, val or test; got {source.split!r} for {source.path}")


def _get(config: Config, name: str) -> Any:
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


def _resolve_paths(config: Config, folder: Path) -> Config:
    def absolute(path: str) -> str:
        return path if not path or "://" in path else str((folder / path).resolve())

    model = dataclasses.replace(config.model, path=absolute(config.model.path))
    data = tuple(dataclasses.replace(d, path=absolute(d.path), name=d.name or Path(d.path).name) for d in config.data)
    return dataclasses.replace(config, model=model, data=data)
