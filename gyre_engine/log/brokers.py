"""Whether a cluster that is not ours keeps what it acknowledges (log-rules, 18). Findings are data; the caller says them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from gyre_engine.log.names import full_name
from gyre_engine.log.port import TOPICS, LogUnavailable
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import admin


class Severity(StrEnum):
    """Whether a run may start in spite of a finding."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the cluster that may lose acknowledged events, or that stops a run."""

    severity: Severity
    what: str
    text: str


class TooFewReplicas(RuntimeError):
    """The cluster cannot keep events as safely as is asked for; the text says why and the remedy."""


@dataclass(frozen=True, slots=True)
class Guards:
    """What a cluster, or a topic on it, is set to. None: it does not say."""

    brokers: int
    min_insync: int | None = None
    unclean_election: bool | None = None
    offsets_replication: int | None = None


def judge(settings: KafkaSettings, guards: Guards) -> list[Finding]:
    """The findings about a cluster that is not ours: replication >= 3, min.insync.replicas >= 2, no unclean election."""
    found: list[Finding] = []
    if guards.brokers < settings.replication:
        text = f"{guards.brokers} broker(s) cannot hold {settings.replication} replicas: lower kafka.replication or add brokers."
        found.append(Finding(Severity.REFUSE, "brokers", text))
    if settings.replication < 3:
        text = f"kafka.replication = {settings.replication}: one lost disk may lose acknowledged events. Set it to 3 or more."
        found.append(Finding(Severity.REFUSE, "replication", text))
    if guards.min_insync is not None and guards.min_insync < 2:
        text = (
            f"min.insync.replicas = {guards.min_insync}: an event may be acknowledged by one replica only. Set it to 2 or more."
        )
        found.append(Finding(Severity.WARN, "min.insync.replicas", text))
    if guards.unclean_election:
        text = "unclean.leader.election.enable = true: a replica that missed events may become leader. Set it to false."
        found.append(Finding(Severity.WARN, "unclean.leader.election.enable", text))
    if guards.offsets_replication is not None and guards.offsets_replication < 3:
        text = (
            f"offsets.topic.replication.factor = {guards.offsets_replication}: consumers may lose their positions. Set it to 3."
        )
        found.append(Finding(Severity.WARN, "offsets.topic.replication.factor", text))
    return found


def check_brokers(settings: KafkaSettings, run: str | None = None) -> list[Finding]:
    """What `judge` finds in the cluster at `settings`; with `run`, in what its topics are set to, which overrides the brokers."""
    return judge(settings, observe(settings, run))


def require_safe(settings: KafkaSettings, run: str | None = None) -> list[Finding]:
    """The findings that do not stop a run. Raises TooFewReplicas with those that do."""
    found = check_brokers(settings, run)
    fatal = [finding.text for finding in found if finding.severity is Severity.REFUSE]
    if fatal:
        raise TooFewReplicas(f"Kafka at {settings.bootstrap_servers} will not do: {' '.join(fatal)}")
    return found


def observe(settings: KafkaSettings, run: str | None) -> Guards:
    """Ask the cluster for its guards. Raises LogUnavailable."""
    client = admin(settings)
    try:
        brokers = client.list_topics(timeout=settings.request_timeout_s).brokers
        configs = _configs(client, settings, sorted(brokers)[0], run)
    except (KafkaException, IndexError, TimeoutError) as error:
        raise LogUnavailable(f"the log at {settings.bootstrap_servers} did not say how it is set up: {error}") from error
    return Guards(
        brokers=len(brokers),
        min_insync=_number(configs, "min.insync.replicas"),
        unclean_election=_flag(configs, "unclean.leader.election.enable"),
        offsets_replication=_number(configs, "offsets.topic.replication.factor"),
    )


def _configs(client: AdminClient, settings: KafkaSettings, broker: int, run: str | None) -> dict[str, str]:
    resources = [ConfigResource(ConfigResource.Type.BROKER, str(broker))]
    if run is not None:
        name = full_name(settings.prefix, run, TOPICS[0])
        resources.append(ConfigResource(ConfigResource.Type.TOPIC, name))
    answers = client.describe_configs(resources, request_timeout=settings.request_timeout_s)
    merged: dict[str, str] = {}
    for resource in resources:
        entries = answers[resource].result(settings.request_timeout_s)
        merged.update({key: entry.value for key, entry in entries.items() if entry.value is not None})
    return merged


def _number(configs: Mapping[str, str], key: str) -> int | None:
    return int(configs[key]) if key in configs else None


def _flag(configs: Mapping[str, str], key: str) -> bool | None:
    return configs[key] == "true" if key in configs else None


__all__: Sequence[str] = (
    "Finding",
    "Guards",
    "Severity",
    "TooFewReplicas",
    "check_brokers",
    "judge",
    "observe",
    "require_safe",
)
