"""From the config to what each part is told: the only place that knows both."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from consumers.analytics.settings import AnalyticsSettings
from consumers.replay.process import ReplaySettings
from consumers.reporting.settings import ReportingSettings, WandbSettings
from consumers.scheduler.process import SchedulerSettings
from consumers.scoring.process import ScoringSettings
from consumers.trainer.settings import TrainerSettings
from gyre_engine.admission import AdmissionSettings
from gyre_engine.batching.step_inputs import Packing
from gyre_engine.config import SANDBOX, Config, NamedModelConfig
from gyre_engine.events.calls import Role
from gyre_engine.experts import Experts
from gyre_engine.harbor import HarborSettings, options
from gyre_engine.losses.config import LossConfig
from gyre_engine.sandbox import Limits
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.evaluations import EvaluationPlan
from gyre_engine.scheduling.life import LifeLimits
from gyre_engine.scheduling.policies import PolicySettings
from gyre_engine.tasks import Source
from gyre_engine.training.mesh import Mesh
from gyre_engine.training.model.maskable import why_paths
from gyre_engine.training.replica import Hyper, ReplicaOptions
from gyre_engine.trees.select import SelectionSettings
from infra.stack.launch import CellPlace, Launch
from infra.stack.layout import StackFolder
from producers.cells.settings import AgentSettings
from producers.proxy.role_rules import RoleRule
from producers.proxy.settings import POLICY, Frozen, Model, ProxySettings, RunSampling, Upstream
from producers.runner.harnesses.port import HarnessSettings
from producers.runner.settings import RunnerSettings
from streams.settings import StreamsSettings

SCORER_VERSION = "1"
SLACK_S = 60.0
"""A client waits this much longer for an answer than the proxy lets it wait: the proxy says why first."""


def cell_name(position: int) -> str:
    """`cell-2`; below 0, of the standalone pool: `standalone-0` at -1, `standalone-1` at -2."""
    return f"cell-{position}" if position >= 0 else f"standalone-{-1 - position}"


def positions(config: Config) -> tuple[int, ...]:
    """Of all cells: 0 to K - 1, then those of the standalone pool, -1 and below."""
    return (*range(config.cells.count), *(-1 - i for i in range(config.cells.standalone)))


def places(config: Config, host: str, ports: Sequence[int]) -> tuple[CellPlace, ...]:
    """The cells that a run begins with, in the order of `positions`; each engine gets one of `ports` at `host`."""
    return tuple(
        CellPlace(cell_name(position), position, f"http://{host}:{port}")
        for position, port in zip(positions(config), ports, strict=True)
    )


def class_plan(config: Config) -> ClassPlan:
    return ClassPlan(config.batch.groups, config.batch.mu, config.batch.phi, config.run.steps)


def loss(config: Config) -> LossConfig:
    c = config.loss
    return LossConfig(
        name=c.name, clip_low=c.clip_low, clip_high=c.clip_high, cap=c.importance_cap, kl=c.kl, kl_estimator=c.kl_estimator,
        entropy=c.entropy, measure_entropy=config.report.enabled and config.report.entropy,
    )  # fmt: skip


def reference(config: Config) -> str:
    """Folder of the reference policy; empty where none is looked at."""
    return (config.loss.reference or config.model.path) if config.loss.kl else ""


def mesh(config: Config) -> Mesh:
    c = config.cells
    return Mesh(c.tensor_parallel, c.pipeline_parallel, c.data_parallel)


def hyper(config: Config) -> Hyper:
    c = config.optimizer
    decay = c.decay_steps or config.run.steps
    return Hyper(
        lr=c.lr, warmup_steps=c.warmup_steps, betas=(c.beta1, c.beta2), eps=c.eps, weight_decay=c.weight_decay, clip=c.clip_norm,
        schedule=c.schedule, decay_steps=decay, min_lr=c.min_lr, wsd_steps=c.wsd_steps or max(1, decay // 10),
        weight_decay_schedule=c.weight_decay_schedule, weight_decay_end=c.weight_decay_end, nonfinite=c.nonfinite,
    )  # fmt: skip


def options_of_replica(config: Config) -> ReplicaOptions:
    """What a replica computes with, in a trainer and in a replay."""
    c = config.training
    return ReplicaOptions(temperature=config.sampling.temperature, dtype=c.dtype, device=c.device, recompute=c.recompute)


def packing(config: Config, pinned_hash: str, model: Path) -> Packing:
    """How the core makes micro-steps, and a replay of its run again."""
    return Packing(
        max_tokens=config.batch.micro_step_tokens, context=config.model.context, aggregate=config.loss.aggregate,
        constant=config.loss.constant, config_hash=pinned_hash, trees=not why_paths(config.batch.trees, model),
    )  # fmt: skip


def trainer(launch: Launch, folder: StackFolder, cell: str, holder: str) -> TrainerSettings:
    config = launch.settings
    return TrainerSettings(
        cell=cell, core=launch.cell(cell).position == 0, holder=holder, model_path=launch.model_path,
        plan=class_plan(config), packing=packing(config, launch.config_hash, Path(launch.model_path)),
        lease_s=config.cells.lease_s,
        checkpoint_url=f"{folder.store(config.run.store).rstrip('/')}/{launch.run}/checkpoints",
        checkpoint_every=config.run.checkpoint_every, checkpoint_keep=config.run.checkpoint_keep, loss=loss(config),
        reference=reference(config), hyper=hyper(config), secret=folder.cell_key(),
        evaluation=evaluation(config), transfer=config.transfer.kind, transfer_host=launch.host, mesh=mesh(config),
        scratch=str(folder.scratch / launch.run / cell), options=options_of_replica(config),
    )  # fmt: skip


def replay(config: Config, pinned_hash: str) -> ReplaySettings:
    return ReplaySettings(
        model_path=config.model.path,
        packing=packing(config, pinned_hash, Path(config.model.path)), reference=reference(config),
        threads=config.cells.threads, admission=admission(config, pinned_hash), loss=loss(config), hyper=hyper(config),
        mesh=mesh(config), options=options_of_replica(config),
    )  # fmt: skip


def moves_kv(config: Config) -> bool:
    """Whether the cells' engines have KV that can be moved; without it the scheduler still says where calls go on."""
    return config.cells.engine == "native" or config.cells.engine_kv != "none"


def scheduler(launch: Launch, holder: str) -> SchedulerSettings:
    config = launch.settings
    s = config.schedule
    return SchedulerSettings(
        holder=holder, cells=tuple(map(cell_name, positions(config))), plan=class_plan(config),
        group_size=config.batch.group_size, policy=s.policy, across_versions=keeps_kv(config),
        options=PolicySettings(slack=s.slack, training_cells=s.training_cells),
        kv=s.kv if moves_kv(config) else "never", silence_s=s.silence_s,
    )  # fmt: skip


def agent(launch: Launch, folder: StackFolder, cell: str, incarnation: str) -> AgentSettings:
    config, place = launch.settings, launch.cell(cell)
    return AgentSettings(
        cell=cell, position=place.position, incarnation=incarnation, engine=config.cells.engine,
        engine_url=place.engine_url, capacity=config.cells.capacity, model_path=launch.model_path,
        scratch=str(folder.scratch / launch.run / cell), plan=class_plan(config), secret=folder.cell_key(),
        transfer=config.transfer.kind, transfer_host=launch.host, fanout=config.publish.fanout,
        release_memory=config.cells.release_memory,
        patience_s=config.publish.patience_s, order=tuple(map(cell_name, positions(config))),
        drain=config.publish.inflight == "drain", limits=LifeLimits(finishing=config.publish.drain_s), keep_kv=keeps_kv(config),
    )  # fmt: skip


def keeps_kv(config: Config) -> bool:
    """Whether KV outlives the weights that computed it."""
    return config.kv.across_versions == "keep"


def proxy(launch: Launch, folder: StackFolder) -> ProxySettings:
    config = launch.settings
    host, _, port = launch.proxy_url.rpartition("//")[2].partition(":")
    s = config.sampling
    return ProxySettings(
        model_folder=Path(config.model.path), secret_file=folder.root / "secret", host=host, port=int(port),
        renderer=config.model.renderer,
        models=models(config),
        sampling=RunSampling(temperature=s.temperature, top_p=s.top_p, top_k=s.top_k, max_tokens=s.max_tokens),
        context_limit=config.model.context, wait_limit_s=config.proxy.wait_limit_s, quiet_s=config.proxy.quiet_s,
        roles=role_rules(config), retry=config.schedule.interrupted == "retry", experts=experts(config),
    )  # fmt: skip


def experts(config: Config) -> Experts | None:
    """The policy's, where routed experts are recorded."""
    if not config.cells.record_routing:
        return None
    return Experts.of_config(json.loads(Path(config.model.path, "config.json").read_text()))


def models(config: Config) -> dict[str, Model]:
    """What each name that agents ask for stands for."""
    own: dict[str, Model] = dict.fromkeys((config.model.name, *config.model.aliases), POLICY)
    return own | {m.name: _model(m) for m in config.models}


def _model(named: NamedModelConfig) -> Model:
    match named.kind:
        case "frozen":
            return Frozen(named.name, named.url)
        case "upstream":
            return Upstream(named.url, named.model, named.key_env)
        case _:
            return POLICY


def role_rules(config: Config) -> tuple[RoleRule, ...]:
    tools = {"any": None, "some": True, "none": False}
    return tuple(RoleRule(Role(r.role), re.compile(r.system), re.compile(r.user), tools[r.tools]) for r in config.roles)


def runner(launch: Launch, folder: StackFolder) -> RunnerSettings:
    config = launch.settings
    r = config.runner
    return RunnerSettings(
        plan=class_plan(config), group_size=config.batch.group_size,
        sources=sources(config), task_filter=r.task_filter,
        harness=harness(config), evaluation=evaluation(config), seed=config.run.seed, max_concurrent=r.max_concurrent,
        overall_timeout_s=r.overall_timeout_s, harness_timeout_s=r.harness_timeout_s, attempts=r.attempts,
        sandboxed=r.sandbox == "bubblewrap", limits=limits(config), workspaces=folder.root / "workspaces" / launch.run,
        store=f"{folder.store(config.run.store).rstrip('/')}/{launch.run}/work", proxy_url=launch.proxy_url,
        harbor=harbor(config), public_url=public_url(config, launch.proxy_url),
        model=config.model.name, secret=folder.secret(), scorer=config.scoring.scorer, scorer_version=SCORER_VERSION,
        reward_bounds=(0.0, config.group.reward_range),
    )  # fmt: skip


def harbor(config: Config) -> HarborSettings | None:
    """Harbor's environment, where executions run in one."""
    r = config.runner
    return None if r.environment == SANDBOX else HarborSettings(r.environment, options(r.environment_options), r.keep)


def public_url(config: Config, proxy_url: str) -> str:
    """Where agents in that environment reach the proxy; empty: nowhere."""
    return config.proxy.public_url.replace("{port}", proxy_url.rpartition(":")[2]).rstrip("/").removesuffix("/v1")


def sources(config: Config) -> tuple[Source, ...]:
    return tuple(Source(d.name, Path(d.path), d.split, d.weight) for d in config.data)


def harness(config: Config) -> HarnessSettings:
    h = config.harness
    return HarnessSettings(
        name=h.name,
        command=h.command,
        system=h.system,
        tools=h.tools,
        answer=h.answer,
        check=h.check,
        max_turns=h.max_turns,
        call_limit_s=config.proxy.wait_limit_s + SLACK_S,
        context=config.model.context,
        options=options(h.options),
    )


def evaluation(config: Config) -> EvaluationPlan:
    e = config.eval
    return EvaluationPlan(every=e.every, split=e.split, before=e.before, after=e.after, tasks=e.tasks, samples=e.samples)


def limits(config: Config) -> Limits:
    r = config.runner
    return Limits(memory_mb=r.memory_mb, processes=r.processes, file_mb=r.output_mb)


def streams(launch: Launch, folder: StackFolder) -> StreamsSettings:
    data = str(folder.scratch / launch.run / "faust")
    return StreamsSettings(
        kafka=launch.kafka(folder), run=launch.run, admission=admission(launch.settings, launch.config_hash), data=data
    )


def admission(config: Config, pinned_hash: str) -> AdmissionSettings:
    return AdmissionSettings(
        scorer=config.scoring.scorer, scorer_version=SCORER_VERSION,
        selection=SelectionSettings(config.selection.j_max, tuple(Role(r) for r in config.selection.roles)),
        group_min=config.group.min,
        reward_range=config.group.reward_range, deviation_floor=config.group.deviation_floor, config_hash=pinned_hash,
        scaled=config.group.scale == "deviation",
    )  # fmt: skip


def scoring(launch: Launch, folder: StackFolder) -> ScoringSettings:
    return scoring_of(launch.settings, folder.scratch / launch.run / "scoring")


def scoring_of(config: Config, scratch: Path) -> ScoringSettings:
    c = config.scoring
    return ScoringSettings(
        sources=sources(config), scratch=scratch, scorer=c.scorer, attempts=c.attempts, concurrent=c.concurrent,
        weights=c.weights, bounds=(0.0, config.group.reward_range), sandboxed=config.runner.sandbox == "bubblewrap",
        limits=limits(config), harbor=harbor(config),
    )  # fmt: skip


def analytics(launch: Launch, folder: StackFolder) -> AnalyticsSettings:
    config = launch.settings
    own = config.clickhouse.url
    flush = config.clickhouse.flush_ms / 1000
    if own:
        return AnalyticsSettings(url=folder.private().get("clickhouse.url", own), flush_seconds=flush)
    port = int(launch.clickhouse_url.rsplit(":", 1)[1])
    return AnalyticsSettings(path=folder.clickhouse, port=port, password=folder.password(), flush_seconds=flush)


def reporting(launch: Launch, folder: StackFolder) -> ReportingSettings:
    c, at = launch.settings.report, urlsplit(launch.metrics_url)
    wandb = WandbSettings(c.wandb, c.wandb_mode, folder.wandb, json.loads(launch.config)) if c.wandb else None
    return ReportingSettings(
        config_hash=launch.config_hash, host=at.hostname or c.host, port=at.port or 0,
        board=folder.boards / launch.run if c.tensorboard else None, wandb=wandb,
    )  # fmt: skip
