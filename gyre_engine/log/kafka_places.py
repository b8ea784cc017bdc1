"""Which topics and partitions a run has on Kafka, and where they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from gyre_engine.log.names import RUNS, full_name
from gyre_engine.log.port import LogUnavailable, UnknownTopic
from gyre_engine.log.presence import Presence, client_log
from gyre_engine.log.settings import KafkaSettings, client_properties

T = TypeVar("T")
_PAUSE = 0.1
_PATIENCE = 2.0
"""Seconds in which a topic that was just declared may come to be known to the broker that is asked."""
TRANSIENT = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
"""What a cluster says while it starts or elects: it is asked again, within the limit."""


class Places:
    """Questions to the cluster about one run. Safe to use from several threads."""

    def __init__(self, settings: KafkaSettings, run: str, presence: Presence) -> None:
        self.settings = settings
        self.run = run
        self.presence = presence
        self._admin = AdminClient(client_properties(settings) | {"error_cb": presence.heard}, logger=client_log)
        self._lock = threading.Lock()
        self._partitions: dict[str, int] = {}
        self._short: dict[str, str] = {}

    def name(self, topic: str) -> str:
        """The full name of a topic of this run."""
        full = full_name(self.settings.prefix, self.run, topic)
        self._short[full] = topic
        return full

    def short(self, full: str) -> str:
        """The name without prefix and run; the inverse of `name`."""
        return self._short[full]

    def group(self, group: str) -> str:
        """Groups are named per run (log-rules, 14)."""
        return f"{self.settings.prefix}.{self.run}.{group}"

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """How many partitions each topic has (fixed for a run). Raises UnknownTopic or LogUnavailable."""
        with self._lock:
            if any(topic not in self._partitions for topic in topics):
                self._learn(topics)
            return {topic: self._partitions[topic] for topic in topics}

    def ends(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """Offset after the last committed event, a partition."""
        counts = self.partitions(topics)
        places = {(t, n): TopicPartition(self.name(t), n) for t in topics for n in range(counts[t])}
        if not places:
            return {}
        offsets = self.ask("where topics end", lambda left: self._latest(list(places.values()), left))
        return dict(zip(places, offsets, strict=True))

    def probe(self, timeout: float) -> None:
        """Ask the servers for a sign of life, and settle what is known about them."""
        self._admin.poll(0)
        try:
            self._admin.list_topics(self.name(RUNS), timeout=timeout)
        except KafkaException:
            self.presence.settle(False)
        else:
            self.presence.settle(True)

    def ask(self, what: str, call: Callable[[float], T]) -> T:
        """`call(seconds left)`, again while the cluster says that it is not ready; then LogUnavailable, which names the servers."""
        limit = self.settings.request_timeout_s
        until = time.monotonic() + limit
        while True:
            try:
                return call(max(0.1, until - time.monotonic()))
            except (KafkaException, TimeoutError) as error:
                code, reason = _reason(error)
                if code not in TRANSIENT or time.monotonic() + _PAUSE > until:
                    raise LogUnavailable(
                        f"the log at {self.settings.bootstrap_servers} did not say {what} ({reason}; limit {limit:g} s)"
                    ) from error
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Nothing to wait for: the client ends with its last reference."""

    def _latest(self, places: list[TopicPartition], left: float) -> list[int]:
        latest = cast(Callable[[], OffsetSpec], OffsetSpec.latest)()
        answers = self._admin.list_offsets(
            dict.fromkeys(places, latest), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=left
        )
        return [int(answers[place].result(left).offset) for place in places]

    def _learn(self, topics: Sequence[str]) -> None:
        until = time.monotonic() + min(_PATIENCE, self.settings.request_timeout_s)
        names = {topic: self.name(topic) for topic in topics}
        while True:
            known = self.ask("which topics it has", lambda left: self._admin.list_topics(timeout=left).topics)
            missing = [name for name in names.values() if name not in known or known[name].error is not None]
            if not missing:
                break
            if time.monotonic() > until:
                where = self.settings.bootstrap_servers
                raise UnknownTopic(f"the log at {where} has no topic {missing[0]}: is {self.run!r} the right run?")
            time.sleep(_PAUSE)
        self._partitions.update({topic: len(known[name].partitions) for topic, name in names.items()})


def _reason(error: KafkaException | TimeoutError) -> tuple[int, str]:
    if isinstance(error, TimeoutError):
        return KafkaError._TIMED_OUT, "no answer"
    return error.args[0].code(), error.args[0].str()
