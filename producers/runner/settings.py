"""What the runner is configured with, in its own terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gyre_engine.harbor import HarborSettings
from gyre_engine.sandbox import Limits
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.evaluations import EvaluationPlan
from gyre_engine.tasks import Source
from producers.runner.harnesses.port import HarnessSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """Of [runner], [harness], [batch], [data], [eval], and where things are. Times in seconds."""

    plan: ClassPlan
    group_size: int
    sources: tuple[Source, ...]
    harness: HarnessSettings
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
    seed: int = 0
    task_filter: str = "none"
    """Which tasks are worth another group: none, or pass-rate."""
    max_concurrent: int = 16
    overall_timeout_s: float = 14_400.0
    harness_timeout_s: float = 0.0
    """Served time; 0: the task's own, or the overall limit where it has none."""
    attempts: int = 3
    sandboxed: bool = True
    limits: Limits = field(default_factory=Limits)
    workspaces: Path
    """A local folder for this run's workspaces; the runner owns it and empties it when it starts."""
    store: str
    """fsspec URL under which work products are kept."""
    work_limit_bytes: int = 256 << 20
    proxy_url: str
    """http://host:port"""
    proxy_socket: str = ""
    """The proxy's own unix socket, if it has one; else the runner bridges to `proxy_url`."""
    harbor: HarborSettings | None = None
    """Where executions run in an environment of Harbor's."""
    public_url: str = ""
    """Where agents in such an environment reach the proxy."""
    model: str = "policy"
    secret: bytes = field(repr=False)
    proxy_patience_s: float = 120.0
    """How long the runner, and an agent's connection in its sandbox, wait for a proxy that does not answer: the window within which
    its supervisor starts it again (RestartPolicy); one that stays away for longer is given up."""
    scorer: str = "verifier"
    scorer_version: str = "1"
    reward_bounds: tuple[float, float] = (0.0, 1.0)
