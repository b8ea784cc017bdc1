"""What must hold before a run starts: an error here costs seconds, an hour later it costs the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from tokenizers import Tokenizer

from consumers.scoring.loading import ScorerError, load_scorer
from gyre_engine.config import SANDBOX, Config, ConfigError, DataSourceConfig, Problem
from gyre_engine.config.limits import nearest
from gyre_engine.config.schema import CellsConfig
from gyre_engine.harbor import HarborError, check_environment
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.losses.names import BUILT_IN, LossError
from gyre_engine.sampling.script_file import ScriptUnreadable, read_script
from gyre_engine.sandbox import SandboxUnavailable, sandbox_available
from gyre_engine.tasks import DataError, TaskError, load_catalog, read_task, task_folders
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.ranks.fit import misfits
from gyre_engine.training.reference import misfit
from gyre_engine.training.replica import TrainingError
from gyre_engine.transfer.kinds import why_not
from infra.sglang.launch import PYTHON as SGLANG
from infra.sglang.launch import no_gpu, taken
from infra.stack import tensors, vocabulary, wiring
from infra.stack.ports import free_ports, is_free
from producers.runner.harnesses import HarnessError
from producers.runner.process import harness_of

BYTES_OF_A_TOKEN = 64
"""Of a micro-step, at most: three numbers a token, and of a target seven more."""
TASKS_TOLD = 5
"""Broken tasks of one source that are told one by one; the rest is counted."""


def check_before_start(config: Config) -> None:
    """Raises one ConfigError with everything that would keep the run from starting: each the thing and the remedy."""
    checks: tuple[Callable[[Config], Iterator[Problem]], ...] = (
        _model,
        _renderer,
        _keys,
        _splits,
        _tasks,
        _engine,
        _engine_args,
        _routing,
        _ranks,
        _device,
        _addresses,
        _transfer,
        _harness,
        _scorer,
        _loss,
        _report,
        _sandbox,
    )
    if wrong := [problem for check in checks for problem in check(config)]:
        raise ConfigError(*wrong)


def check_cell_before_start(config: Config, host: str) -> None:
    """The same for a cell of a run elsewhere, that this host is to keep at address `host`."""
    own = replace(config, cells=replace(config.cells, host=host))
    if wrong := [problem for check in (_engine, _address_of_cells, _transfer, _device) for problem in check(own)]:
        raise ConfigError(*wrong)


def _model(config: Config) -> Iterator[Problem]:
    at = (("model", "path"),)
    model = Path(config.model.path)
    if not config.model.path:
        yield Problem("model.path is empty: name a folder with config.json, model.safetensors and tokenizer.json", at)
    elif not model.is_dir():
        yield Problem(f"model.path: {model} is no folder (relative paths are taken from the config's folder)", at)
    else:
        yield from (
            Problem(f"model.path: {text}", at)
            for text in (*_broken_files(model), *tensors.misfits(model), *vocabulary.misfits(model))
        )


def _broken_files(model: Path) -> Iterator[str]:
    if not os.access(model / "tokenizer.json", os.R_OK):
        yield f"{model / 'tokenizer.json'} cannot be read"
    try:
        json.loads((model / "config.json").read_text(encoding="utf-8"))
    except OSError:
        yield f"{model / 'config.json'} cannot be read"
    except ValueError as error:
        yield f"{model / 'config.json'} is not JSON: {error}"


def _renderer(config: Config) -> Iterator[Problem]:
    """`auto` is not looked up here: importing the library takes a second, which a name that was written down alone is worth."""
    name = config.model.renderer
    if ":" in name:
        yield from _own_renderer(name)
    elif name != "auto" and name not in (known := _renderers()):
        listed = ", ".join(known)
        text = f"model.renderer must be auto, MODULE:CLASS or one of the library renderers ({listed}); got {name!r}"
        yield Problem(f"{text}{nearest(name, known)}", (("model", "renderer"),))


def _own_renderer(name: str) -> Iterator[Problem]:
    from producers.proxy.rendering import UnknownRenderer, config_of

    try:
        config_of(name)
    except UnknownRenderer as error:
        yield Problem(f"model.renderer: {error}", (("model", "renderer"),))


def _renderers() -> tuple[str, ...]:
    """The names that the proxy can make a renderer of; one of `renderers` that is code of your own needs more than a name."""
    from renderers.configs import CustomRendererConfig, RendererConfig

    kinds = get_args(get_args(RendererConfig)[0])
    return tuple(sorted({kind.model_fields["name"].default for kind in kinds if kind is not CustomRendererConfig} - {"auto"}))


def _keys(config: Config) -> Iterator[Problem]:
    """The keys of upstreams: the proxy finds them in the environment that the run is started in."""
    for index, model in enumerate(config.models):
        if model.key_env and not os.environ.get(model.key_env):
            text = f"models.key_env: the environment has no {model.key_env} for {model.name!r}: export the upstream's key there first"
            yield Problem(text, (("models", index, "key_env"),))


def _splits(config: Config) -> Iterator[Problem]:
    """Every split that is trained or evaluated on needs a source."""
    there = {source.split for source in config.data}
    if not config.data:
        yield Problem('no [[data]] source: give at least one folder of Harbor tasks with split = "train"')
        return
    if "train" not in there:
        yield Problem('no [[data]] source has split = "train"', (("data", 0, "split"), ("data", 0)))
    plan = config.eval
    for key, split in (("before", plan.before), ("after", plan.after), ("split", plan.split if plan.every else "")):
        if split and split not in there:
            yield Problem(f'eval.{key} is "{split}", but no [[data]] source has split = "{split}": add one', (("eval", key),))


def _tasks(config: Config) -> Iterator[Problem]:
    """All tasks are read once; only where that fails they are read again one by one, to tell of each."""
    try:
        load_catalog(wiring.sources(config))
    except (DataError, TaskError) as error:
        each = [problem for index, source in enumerate(config.data) for problem in _source(index, source)]
        yield from each or [Problem(str(error), (("data", 0),))]


def _source(index: int, source: DataSourceConfig) -> Iterator[Problem]:
    folder, at = Path(source.path), (("data", index, "path"), ("data", index))
    if not source.path:
        yield Problem("data.path is empty: name a folder of Harbor task directories", at)
    elif not Path(source.path.partition("#")[0]).exists():
        yield Problem(f"data.path: {folder} is no folder (relative paths are taken from the config's folder)", at)
    else:
        yield from (Problem(text, at) for text in _broken_tasks(folder))


def _broken_tasks(folder: Path) -> Iterator[str]:
    try:
        found = task_folders(folder).values()
    except DataError as error:
        yield f"data.path: {error}"
        return
    wrong = [error for error in map(_task_error, found) if error]
    yield from wrong[:TASKS_TOLD]
    if len(wrong) > TASKS_TOLD:
        yield f"data.path: {len(wrong) - TASKS_TOLD} more tasks in {folder} cannot be used: `gyre doctor --tasks {folder}`"


def _task_error(folder: Path) -> str:
    try:
        read_task(folder)
    except TaskError as error:
        return str(error)
    return ""


def _engine(config: Config) -> Iterator[Problem]:
    if config.cells.engine == "sglang":
        yield from _sglang(config.cells)
        yield from _dense_layers(config)
    if config.cells.engine == "scripted" and os.access(tokenizer := Path(config.model.path, "tokenizer.json"), os.R_OK):
        try:
            read_script(config.cells.script, Tokenizer.from_file(str(tokenizer)))
        except ScriptUnreadable as error:
            yield Problem(f"cells.script: {error}", (("cells", "script"),))


def _dense_layers(config: Config) -> Iterator[Problem]:
    """SGLang takes every layer of a Qwen3-MoE for a mixture, and computes with weights that no file holds."""
    with suppress(TrainingError, OSError, ValueError, KeyError):
        shape = ModelShape.of_folder(Path(config.model.path))
        if shape.experts is not None and len(shape.experts.layers) < shape.layers:
            text = 'cells.engine: SGLang serves no qwen3_moe with layers that have no experts: set it to "native"'
            yield Problem(text, (("cells", "engine"), ("model", "path")))


def _engine_args(config: Config) -> Iterator[Problem]:
    """What SGLang is told further must not say again what Gyre relies on."""
    if own := taken(config.cells.engine_args):
        yield Problem(f"cells.engine_args: Gyre itself sets {', '.join(own)}: remove it", (("cells", "engine_args"),))


def _ranks(config: Config) -> Iterator[Problem]:
    """The ranks of a cell share the model evenly. What cannot be read of it, `_model` tells."""
    mesh = wiring.mesh(config)
    if mesh.ranks == 1:
        return
    with suppress(TrainingError, OSError, ValueError, KeyError):
        shape = ModelShape.of_folder(Path(config.model.path))
        yield from (Problem(text, (("cells", key),)) for key, text in misfits(mesh, shape))


def _device(config: Config) -> Iterator[Problem]:
    """A GPU for the trainers must be there, and a cell on it is one process."""
    if config.training.device == "cpu":
        return
    at = (("training", "device"),)
    if not cuda_is_here():
        yield Problem('training.device is "cuda", but torch finds no GPU here that it can use: set it to "cpu"', at)
    if wiring.mesh(config).ranks > 1:
        text = 'training.device is "cuda", and a cell of several processes trains over gloo: set cells.*_parallel to 1, or it to "cpu"'
        yield Problem(text, at)


def cuda_is_here() -> bool:
    """Whether torch can compute on a GPU of this host. Heavy: imports torch."""
    import torch

    return bool(torch.cuda.is_available())


def _routing(config: Config) -> Iterator[Problem]:
    """Who can tell which experts computed a token. What cannot be read of the model, `_model` tells."""
    cells, at = config.cells, (("cells", "record_routing"),)
    if not cells.record_routing:
        return
    if cells.engine == "scripted":
        yield Problem(
            'cells.record_routing: a scripted engine computes nothing: set it to false, or cells.engine to "native"', at
        )
    if cells.engine == "sglang" and cells.engine_kv == "hicache":
        text = 'cells.record_routing: SGLang knows no experts of KV that moved: set it to false, or cells.engine_kv to "none"'
        yield Problem(text, (*at, ("cells", "engine_kv")))
    with suppress(OSError, ValueError, KeyError):
        if (experts := wiring.experts(config)) is None:
            yield Problem(f"cells.record_routing: the model in {config.model.path} has no experts: set it to false", at)
        elif (longest := max(config.model.context, config.batch.micro_step_tokens)) > (most := _recordable(experts.width)):
            text = (
                f"cells.record_routing: a micro-step of {longest} tokens, with {experts.width} bytes of experts each, is more than "
                f"the log takes: set it to false, or model.context and batch.micro_step_tokens to {most} at most"
            )
            yield Problem(text, (*at, ("model", "context"), ("batch", "micro_step_tokens")))


def _recordable(width: int) -> int:
    """How many tokens a micro-step may have whose experts take so many bytes each."""
    return (KafkaSettings("").message_max_bytes - (1 << 20)) // (width + BYTES_OF_A_TOKEN)


def _addresses(config: Config) -> Iterator[Problem]:
    """What is bound here must be an address of this host."""
    yield from _address_of_cells(config)
    yield from _address("proxy", config.proxy.host)
    if config.report.enabled:
        yield from _address("report", config.report.host)
    if not config.kafka.bootstrap_servers:
        yield from _address("kafka", config.kafka.host)


def _address_of_cells(config: Config) -> Iterator[Problem]:
    yield from _address("cells", config.cells.host)


def _address(section: str, host: str) -> Iterator[Problem]:
    if section != "proxy" and host in ("0.0.0.0", "::"):  # noqa: S104
        text = (
            f"{section}.host: {host} is every address of this host and none that others can be told: give the one that they reach"
        )
        yield Problem(text, ((section, "host"),))
        return
    try:
        free_ports(1, host)
    except OSError:
        text = f"{section}.host: nothing can be bound at {host!r} here: give an address of this host (`ip address` lists them)"
        yield Problem(text, ((section, "host"),))


def _sglang(cells: CellsConfig) -> Iterator[Problem]:
    python, kv = cells.sglang_python, ("cells", "engine_kv")
    if not python and not SGLANG.exists():
        yield Problem('cells.engine is "sglang", which is not installed: `make install-sglang`', (("cells", "engine"),))
    if python and not os.access(python, os.X_OK):
        yield Problem(f"cells.sglang_python: {python} is no program that can be run", (("cells", "sglang_python"),))
    asked = {"engine_kv": cells.engine_kv == "hicache", "sglang_python": bool(python), "release_memory": cells.release_memory}
    keys = [("cells", key) for key, given in asked.items() if given]
    if not keys:
        return
    if missing := no_gpu():
        names = " and ".join(".".join(key) for key in keys)
        text = f"{names}: needs a GPU, as SGLang calls CUDA's runtime then, and {missing}"
        yield Problem(f"{text}. On a CPU leave it out: memory stays, and KV is computed again", tuple(keys))
    elif cells.engine_kv == "hicache" and not python:
        text = 'cells.engine_kv is "hicache", but cells.sglang_python is empty: SGLang on the CPU has no HiCache'
        yield Problem(text, (kv, ("cells", "sglang_python")))


def _transfer(config: Config) -> Iterator[Problem]:
    """Every process of the run opens one."""
    if wrong := why_not(config.transfer.kind):
        yield Problem(f'transfer.kind is "{config.transfer.kind}", which cannot work here: {wrong}', (("transfer", "kind"),))


def _harness(config: Config) -> Iterator[Problem]:
    harbor = wiring.harbor(config)
    try:
        if harbor is not None:
            check_environment(harbor)  # first and by itself: what is wrong with it stands at another key
        harness_of(wiring.harness(config), harbor, config.proxy.public_url)
    except HarborError as error:
        yield Problem(str(error), (("runner", "environment"),))
    except HarnessError as error:
        yield Problem(str(error), (("harness", "name"),))


def _scorer(config: Config) -> Iterator[Problem]:
    if config.scoring.scorer == "verifier":
        return
    try:
        load_scorer(config.scoring.scorer)
    except ScorerError as error:
        yield Problem(f"scoring.scorer: {error}", (("scoring", "scorer"),))


def _loss(config: Config) -> Iterator[Problem]:
    """A loss of an installed package is loaded here, as the trainers will; a reference must have the policy's shape and words."""
    if config.loss.name not in BUILT_IN:
        from gyre_engine.losses.policy import loss_function

        try:
            loss_function(config.loss.name)
        except LossError as error:
            yield Problem(f"loss.name: {error}", (("loss", "name"),))
    if not (config.loss.kl and config.loss.reference):
        return
    model, reference = Path(config.model.path), Path(config.loss.reference)
    with suppress(TrainingError, OSError, ValueError, KeyError):
        policy = ModelShape.of_folder(model)
        yield from (Problem(f"loss.reference: {text}", (("loss", "reference"),)) for text in _unfit(policy, model, reference))


def _unfit(policy: ModelShape, model: Path, reference: Path) -> Iterator[str]:
    """The first of these alone: files of another model have nothing that could be compared."""
    if wrong := misfit(policy, reference):
        yield wrong
    elif broken := list(tensors.misfits(reference) if reference != model else ()):
        yield from broken
    elif wrong := vocabulary.other_words(model, reference):
        yield wrong


def _report(config: Config) -> Iterator[Problem]:
    """What is sent to Weights & Biases needs its library and, online, its key; a port that is asked for must be free."""
    own = config.report
    if not own.enabled:
        return
    if own.wandb and find_spec("wandb") is None:
        yield Problem("report.wandb is set, and wandb is not installed: `uv sync --extra wandb`", (("report", "wandb"),))
    if own.wandb and own.wandb_mode == "online" and not os.environ.get("WANDB_API_KEY"):
        text = 'report.wandb: the environment has no WANDB_API_KEY: export it there first, or set report.wandb_mode = "offline"'
        yield Problem(text, (("report", "wandb"),))
    if own.port and not is_free(own.host, own.port):
        yield Problem(
            f"report.port: {own.host}:{own.port} cannot be bound: give a free port, or 0 for any", (("report", "port"),)
        )


def _sandbox(config: Config) -> Iterator[Problem]:
    if config.runner.sandbox != "bubblewrap" or config.runner.environment != SANDBOX:
        return
    try:
        sandbox_available()
    except SandboxUnavailable as error:
        yield Problem(f"runner.sandbox: {error}", (("runner", "sandbox"),))
