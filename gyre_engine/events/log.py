"""Events on `runs` and `dead-letters`: what stands on the log about the log itself: its runs, and records nobody could use."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.events.envelope import Event, event


@event("run-started", topic="runs", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """Everything a run is pinned to (log-rules, 15)."""

    run: str
    config: str
    """The whole effective config as JSON, secrets left out."""
    config_hash: str
    versions: dict[str, str]
    partitions: dict[str, int]
    fingerprint: dict[str, str]
    """Hardware, torch build and thread count: what makes a replay comparable (learning: bit for bit)."""
    initial_weights: str
    """fsspec URL of the initial weights."""
    initial_weights_hash: str
    """sha256 over the folder's safetensors files in the order of their names, hex."""
    topic_prefix: str
    model_files: dict[str, str] = field(default_factory=dict)
    """Name -> text of the model's config.json and generation_config.json: what a cell on another host makes a model folder of."""
    reference_hash: str = ""
    """As initial_weights_hash, of the reference policy; empty: the loss looks at none, or the run was begun before this was pinned."""


@event("run-resumed", topic="runs", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Event):
    """A run goes on that had ended or was cut off: an end that stands before this is none."""

    run: str


@event("run-ended", topic="runs", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The run is over: `completed`, `stopped` or `failed`."""

    run: str
    outcome: str
    reason: str
    steps: int


@event("dead-letter", topic="dead-letters", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(Event):
    """A record that could not be read or handled, where it stood, and why."""

    topic: str
    partition: int
    offset: int
    reader: str
    reason: str
    message_key: bytes
    value: bytes
    """The record as it is on the log, cut at 64 kB."""
