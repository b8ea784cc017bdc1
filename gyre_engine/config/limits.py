"""Which values of a config can work: ranges, names to choose from, and values that must fit each other."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from gyre_engine.config.problems import Keys, Problem, keys_of
from gyre_engine.config.schema import Config, NamedModelConfig
from gyre_engine.events.calls import Role
from gyre_engine.losses.aggregates import AGGREGATES, CONSTANT
from gyre_engine.losses.config import KL_ESTIMATORS
from gyre_engine.losses.names import choices, wrong_with
from gyre_engine.scheduling.policies import POLICIES
from gyre_engine.transfer.kinds import KINDS

SPLITS = ("train", "val", "test")
ROLES = tuple(role.value for role in Role)
MODEL_KINDS = ("policy", "frozen", "upstream")
NO_LIMIT = math.inf
HARNESSES = ("mini", "mini-swe-agent", "claude-code", "codex", "qwen-code", "command")
HARBOR = "harbor:"
SANDBOX = "sandbox"

_AT_LEAST_ONE = (
    "run.steps", "cells.count", "cells.capacity", "cells.threads", "cells.kv_tokens", "cells.engine_kv_mb", "kafka.partitions",
    "batch.groups",
    "batch.group_size", "batch.mu", "batch.micro_step_tokens", "runner.max_concurrent", "runner.attempts", "runner.memory_mb",
    "runner.processes", "runner.output_mb", "selection.j_max", "scoring.attempts", "scoring.concurrent", "eval.samples",
    "harness.max_turns", "schedule.training_cells", "model.context", "sampling.max_tokens", "clickhouse.flush_ms",
    "cells.tensor_parallel", "cells.pipeline_parallel", "cells.data_parallel",
)  # fmt: skip
_AT_LEAST_ZERO = (
    "run.checkpoint_every", "run.checkpoint_keep", "batch.phi", "sampling.top_k", "kafka.replication", "runner.harness_timeout_s",
    "eval.every", "eval.tasks", "loss.constant", "optimizer.warmup_steps", "optimizer.decay_steps", "optimizer.wsd_steps",
    "cells.standalone", "publish.fanout",
)  # fmt: skip
_ONE_OF = {
    "cells.engine": ("native", "sglang", "scripted"),
    "cells.engine_kv": ("none", "hicache"),
    "transfer.kind": KINDS,
    "runner.sandbox": ("bubblewrap", "none"),
    "runner.task_filter": ("none", "pass-rate"),
    "harness.name": (*HARNESSES, "harbor:AGENT"),
    "batch.trees": ("auto", "paths"),
    "schedule.policy": tuple(POLICIES),
    "schedule.kv": ("auto", "always", "never"),
    "schedule.interrupted": ("continue", "retry"),
    "publish.inflight": ("continue", "drain"),
    "kv.across_versions": ("recompute", "keep"),
    "optimizer.schedule": ("constant", "linear", "cosine", "wsd", "inverse-square-root"),
    "optimizer.weight_decay_schedule": ("constant", "linear", "cosine"),
    "optimizer.nonfinite": ("stop", "skip"),
    "training.dtype": ("float32", "bfloat16"),
    "training.device": ("cpu", "cuda"),
    "report.wandb_mode": ("online", "offline"),
    "eval.split": SPLITS,
    "eval.before": ("", *SPLITS),
    "eval.after": ("", *SPLITS),
    "loss.aggregate": AGGREGATES,
    "loss.kl_estimator": KL_ESTIMATORS,
    "group.scale": ("deviation", "none"),
}
_RENAMED = {"schedule.policy": {"elastic": "paper"}}
"""By key, values of earlier versions and what they are called now."""
_RANGES: dict[str, tuple[float, float, bool]] = {
    # name: (least, most, whether the least itself is allowed)
    "optimizer.min_lr": (0.0, 10.0, True), "optimizer.weight_decay_end": (0.0, 10.0, True),
    "optimizer.lr": (0.0, 10.0, False), "optimizer.beta1": (0.0, 0.999999, True), "optimizer.beta2": (0.0, 0.999999, True),
    "optimizer.eps": (0.0, 1.0, False), "optimizer.weight_decay": (0.0, 10.0, True), "optimizer.clip_norm": (0.0, 1e9, True),
    "loss.clip_low": (0.0, 1.0, False), "loss.clip_high": (0.0, 100.0, False), "loss.importance_cap": (1.0, 1e6, True),
    "loss.kl": (0.0, 1e6, True), "loss.entropy": (0.0, 1e6, True),
    "sampling.temperature": (0.0, 100.0, False), "sampling.top_p": (0.0, 1.0, False), "group.reward_range": (0.0, 1e9, False),
    "group.deviation_floor": (0.0, 1.0, False), "cells.lease_s": (1.0, 1e6, True), "runner.overall_timeout_s": (0.0, 1e9, False),
    "schedule.slack": (0.0, 1.0, True), "proxy.port": (0, 65535, True),
    "kafka.port": (0, 65535, True), "report.port": (0, 65535, True), "proxy.wait_limit_s": (0.0, 1e9, False),
    "proxy.quiet_s": (0.0, 60.0, False), "schedule.silence_s": (10.0, 1e6, True),
    "kafka.delivery_timeout_s": (0.0, 1e6, False), "publish.patience_s": (0.0, 1e6, True), "publish.drain_s": (0.0, 1e6, False),
    **dict.fromkeys(_AT_LEAST_ONE, (1, NO_LIMIT, True)),
    **dict.fromkeys(_AT_LEAST_ZERO, (0, NO_LIMIT, True)),
}  # fmt: skip
_WORDS = ("run.name", "kafka.prefix")
_WORD = re.compile(r"[A-Za-z0-9_-]{1,80}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def problems(config: Config) -> list[Problem]:
    """Everything in `config` that cannot work."""
    checks: tuple[Callable[[Config], Iterator[Problem]], ...] = (
        _ranges, _names, _loss, _data, _models, _roles, _selection, _relations, _optimizer, _schedule, _harbor,
    )  # fmt: skip
    return [problem for check in checks for problem in check(config)]


def _ranges(config: Config) -> Iterator[Problem]:
    for name, limits in _RANGES.items():
        value = _get(config, name)
        if not _within(value, *limits):
            yield Problem(f"{name} must be {_in_words(*limits)}, got {value}", (keys_of(name),))


def _within(value: float, least: float, most: float, inclusive: bool) -> bool:
    return least <= value <= most and (inclusive or value > least)


def _in_words(least: float, most: float, inclusive: bool) -> str:
    floor = f"{'at least' if inclusive else 'above'} {least:g}"
    return floor if most == NO_LIMIT else f"{floor} and at most {most:g}"


def _names(config: Config) -> Iterator[Problem]:
    for name, allowed in _ONE_OF.items():
        if (value := _get(config, name)) not in allowed and not (name == "harness.name" and value.startswith(HARBOR)):
            now = _RENAMED.get(name, {}).get(value)
            hint = f'. It is now called "{now}"' if now else nearest(value, allowed)
            yield Problem(f"{name} must be one of {_listed(allowed)}; got {value!r}{hint}", (keys_of(name),))
    for name in _WORDS:
        if not _WORD.fullmatch(value := _get(config, name)):
            yield Problem(f"{name} must be a word of letters, digits, - and _ (at most 80), got {value!r}", (keys_of(name),))


def _loss(config: Config) -> Iterator[Problem]:
    """Names are looked up and no code of others is loaded: that is done before a start."""
    loss = config.loss
    if wrong := wrong_with(loss.name):
        yield Problem(f"{wrong}{nearest(loss.name, choices())}", (("loss", "name"),))
    at = (("loss", "constant"), ("loss", "aggregate"))
    if loss.aggregate == CONSTANT and loss.constant < 1:
        yield Problem('loss.aggregate is "constant": give the tokens to divide by in loss.constant', at[::-1])
    elif loss.aggregate != CONSTANT and loss.constant:
        yield Problem(f'loss.constant is given, but loss.aggregate is "{loss.aggregate}": set that to "constant"', at)
    if loss.reference and not loss.kl:
        at = (("loss", "reference"), ("loss", "kl"))
        yield Problem("loss.reference is given, but loss.kl is 0: it would be ignored; set loss.kl, or leave it empty", at)


def _listed(allowed: tuple[str, ...]) -> str:
    return ", ".join(name or '""' for name in allowed)


def nearest(word: str, allowed: tuple[str, ...]) -> str:
    """`. Did you mean "..."?`, or nothing."""
    if word in allowed:
        return ""
    known = {name.lower(): name for name in allowed if name}
    near = [known[name] for name in difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)]
    return f'. Did you mean "{near[0]}"?' if near else ""


def _data(config: Config) -> Iterator[Problem]:
    for index, source in enumerate(config.data):
        if source.split not in SPLITS:
            text = f"data.split must be train, val or test; got {source.split!r} for {source.path}{nearest(source.split, SPLITS)}"
            yield Problem(text, (("data", index, "split"),))
        if not source.weight > 0:
            yield Problem(f"data.weight must be above 0, got {source.weight}", (("data", index, "weight"),))


def _models(config: Config) -> Iterator[Problem]:
    taken = {config.model.name, *config.model.aliases}
    for index, model in enumerate(config.models):
        if not model.name:
            yield Problem(
                "models.name is empty: give the name that agents ask for", (("models", index, "name"), ("models", index))
            )
        elif model.name in taken:
            text = f"models.name {model.name!r} stands for two things: a name may stand in [model] or in one [[models]] only"
            yield Problem(text, (("models", index, "name"),))
        taken.add(model.name)
        for key, text in _kind(model):
            yield Problem(f"models.{key}{text}", (("models", index, key), ("models", index)))


def _kind(model: NamedModelConfig) -> Iterator[tuple[str, str]]:
    """The keys of an entry that do not fit its kind, each with what is wrong. URLs are not shown: they might hold a key."""
    if model.kind not in MODEL_KINDS:
        yield "kind", f" must be one of {_listed(MODEL_KINDS)}; got {model.kind!r}{nearest(model.kind, MODEL_KINDS)}"
        return
    if model.kind == "policy" and model.url:
        yield "url", f" of {model.name!r} is given, but its kind is policy: the cells serve it"
    if model.kind != "policy" and not model.url:
        yield "url", f" of {model.name!r} is empty: a model of kind {model.kind} needs one"
    elif model.kind != "policy" and (wrong := _no_base_url(model.url)):
        key = ": name the environment variable with the key in models.key_env" if "credentials" in wrong else ""
        yield "url", f" of {model.name!r} {wrong}{key}"
    for key, value in (("model", model.model), ("key_env", model.key_env)):
        if value and model.kind != "upstream":
            yield key, f" of {model.name!r} is for models of kind upstream, this one is of kind {model.kind}"
    if model.key_env and not _VARIABLE.fullmatch(model.key_env):
        yield "key_env", f" of {model.name!r} is no name of an environment variable: give the name, never the key"


def _no_base_url(url: str) -> str:
    """What is wrong with a base URL, or nothing."""
    no_url = "is no URL: write http://HOST:PORT or https://HOST/PATH"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return no_url
    if parts.scheme not in ("http", "https") or not host or re.search(r"\s", url):
        return no_url
    if parts.username is not None or parts.query or parts.fragment:
        return "must not hold credentials, a query or a fragment"
    return ""


def _roles(config: Config) -> Iterator[Problem]:
    for index, rule in enumerate(config.roles):
        for key, value, allowed in (("role", rule.role, ROLES), ("tools", rule.tools, ("any", "some", "none"))):
            if value not in allowed:
                text = f"roles.{key} must be one of {_listed(allowed)}; got {value!r}{nearest(value, allowed)}"
                yield Problem(text, (("roles", index, key),))
        for key, pattern in (("system", rule.system), ("user", rule.user)):
            try:
                re.compile(pattern)
            except re.error as error:
                text = f"roles.{key} is no regular expression: {error} in {pattern!r}"
                yield Problem(text, (("roles", index, key),))
        if not rule.system and not rule.user and rule.tools == "any":
            text = "a rule of [[roles]] must look at something: give system, user or tools"
            yield Problem(text, (("roles", index),))


def _selection(config: Config) -> Iterator[Problem]:
    for role in config.selection.roles:
        if role not in ROLES:
            text = f"selection.roles may hold {_listed(ROLES)}; got {role!r}{nearest(role, ROLES)}"
            yield Problem(text, (("selection", "roles"),))


def _relations(config: Config) -> Iterator[Problem]:
    if config.batch.group_size < config.group.min:
        yield Problem(
            f"batch.group_size ({config.batch.group_size}) is below group.min ({config.group.min}): no group could train",
            (("batch", "group_size"), ("group", "min")),
        )
    if config.sampling.max_tokens >= config.model.context:
        yield Problem(
            f"sampling.max_tokens ({config.sampling.max_tokens}) leaves no room for a prompt in model.context "
            f"({config.model.context}): lower the one or raise the other",
            (("sampling", "max_tokens"), ("model", "context")),
        )
    if config.harness.name == "command" and not config.harness.command:
        text = 'harness.name is "command" but harness.command is empty: give the command line to run'
        yield Problem(text, (("harness", "command"), ("harness", "name")))
    if config.kv.across_versions == "keep" and config.cells.engine != "native":
        text = (
            f'kv.across_versions is "keep" but cells.engine is "{config.cells.engine}": only the native engine tells what it keeps '
            'and scores a probe on it; set cells.engine = "native", or kv.across_versions = "recompute"'
        )
        yield Problem(text, (("kv", "across_versions"), ("cells", "engine")))
    if config.cells.engine_args and config.cells.engine != "sglang":
        text = (
            f'cells.engine_args are for SGLang, but cells.engine is "{config.cells.engine}": remove them, or set it to "sglang"'
        )
        yield Problem(text, (("cells", "engine_args"), ("cells", "engine")))
    if config.cells.engine_kv == "hicache" and config.cells.engine != "sglang":
        text = (
            f'cells.engine_kv is "hicache", which is of SGLang, but cells.engine is "{config.cells.engine}": '
            'set cells.engine = "sglang", or leave engine_kv out (KV of the native engine moves by itself)'
        )
        yield Problem(text, (("cells", "engine_kv"), ("cells", "engine")))
    if config.cells.engine == "scripted" and not config.cells.script:
        text = 'cells.engine is "scripted" but cells.script is empty: name the TOML file with its answers'
        yield Problem(text, (("cells", "script"), ("cells", "engine")))


def _optimizer(config: Config) -> Iterator[Problem]:
    """Lengths of a schedule, as the wiring fills them in."""
    o = config.optimizer
    decay = o.decay_steps or config.run.steps
    wsd = o.wsd_steps or max(1, decay // 10)
    at = (("optimizer", "decay_steps"), ("optimizer", "warmup_steps"), ("run", "steps"))
    if 0 < o.lr < o.min_lr:
        text = f"optimizer.min_lr ({o.min_lr:g}) is above optimizer.lr ({o.lr:g})"
        yield Problem(text, (("optimizer", "min_lr"), ("optimizer", "lr")))
    if o.schedule != "constant" and decay <= o.warmup_steps:
        yield Problem(
            f"optimizer.decay_steps ({decay}) must be above optimizer.warmup_steps ({o.warmup_steps}): it counts them", at
        )
    elif o.schedule == "wsd" and wsd > decay - o.warmup_steps:
        text = f"optimizer.wsd_steps ({wsd}) must fit between warmup_steps ({o.warmup_steps}) and decay_steps ({decay})"
        yield Problem(text, (("optimizer", "wsd_steps"), *at))
    if o.weight_decay_schedule != "constant" and o.weight_decay_end < o.weight_decay:
        text = f"optimizer.weight_decay only rises: weight_decay_end ({o.weight_decay_end:g}) is below it ({o.weight_decay:g})"
        yield Problem(text, (("optimizer", "weight_decay_end"), ("optimizer", "weight_decay")))


def _schedule(config: Config) -> Iterator[Problem]:
    cells, schedule = config.cells, config.schedule
    at = (("schedule", "training_cells"), ("cells", "count"), ("schedule", "policy"))
    if schedule.policy != "async" or schedule.training_cells < 1:
        return
    if schedule.training_cells > cells.count:
        yield Problem(f"schedule.training_cells ({schedule.training_cells}) is above cells.count ({cells.count})", at)
    elif schedule.training_cells == cells.count and not cells.standalone:
        text = f"schedule.training_cells is cells.count ({cells.count}): no cell samples; lower it, or set cells.standalone"
        yield Problem(text, at)


def _harbor(config: Config) -> Iterator[Problem]:
    """Harbor's agents run in Harbor's environments, and those run nothing else. What Harbor itself knows is checked before a start."""
    runner, harness, url = config.runner, config.harness.name, config.proxy.public_url
    at = (("runner", "environment"), ("harness", "name"))
    if harness.startswith(HARBOR) and runner.environment == SANDBOX:
        text = f'harness.name is {harness!r}, an agent of Harbor\'s: it needs runner.environment, e.g. "docker"'
        yield Problem(text, at[::-1])
    elif runner.environment != SANDBOX and not harness.startswith(HARBOR):
        text = f'runner.environment is {runner.environment!r}, where only Harbor\'s agents run: set harness.name = "harbor:AGENT"'
        yield Problem(text, at)
    if url and (wrong := _no_base_url(url.replace("{port}", "1"))):
        yield Problem(f"proxy.public_url {wrong}", (("proxy", "public_url"),))
    for path in runner.keep:
        if not path.startswith("/") or ".." in path.split("/") or path.rstrip("/") == "":
            yield Problem(f"runner.keep must hold absolute paths below /, got {path!r}", (("runner", "keep"),))


def _get(config: Config, name: str) -> Any:
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


def blames(problem: Problem, suspects: set[Keys]) -> bool:
    """Whether a value of `problem` is known to be wrong already (its default stands in), so that this one says nothing new."""
    return any(keys[: len(suspect)] == suspect for keys in problem.at for suspect in suspects)
