"""Whether the log's servers answer, said once when they go and once when they are back.

A client library repeats such lines many times a second; they go to the logger `gyre.librdkafka`, which is silent by default.
"""

from __future__ import annotations

import logging
import threading

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

log = logging.getLogger(__name__)
client_log = logging.getLogger("gyre.librdkafka")
client_log.setLevel(logging.CRITICAL + 1)


class Presence:
    """What all clients of one handle know about the servers together.

    A client's word that they are gone may be old (it waits in that client's queue), so it only raises a suspicion; `settle` decides
    after a question to the servers.
    """

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._lock = threading.Lock()
        self._away = False
        self._suspect = False
        self._said: set[int] = set()

    @property
    def doubtful(self) -> bool:
        """Whether the servers should be asked."""
        return self._away or self._suspect

    def heard(self, error: KafkaError) -> None:
        """Librdkafka's error callback."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._suspect = True
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._FATAL):
            self._refused(error)

    def answered(self) -> None:
        """Some server answered one of the clients."""
        if self._away:
            self.settle(True)

    def settle(self, there: bool) -> None:
        """Note whether the servers answer, and say so where that is new."""
        with self._lock:
            was_away, self._away, self._suspect = self._away, not there, False
        if there and was_away:
            self._said.clear()
            log.warning("the log at %s answers again", self.servers)
        elif not there and not was_away:
            log.warning("the log at %s does not answer; trying again until it does", self.servers)

    def _refused(self, error: KafkaError) -> None:
        with self._lock:
            known = error.code() in self._said
            self._said.add(error.code())
        if not known:
            log.error("the log at %s: %s", self.servers, error.str())


def warm(client: Producer | Consumer, timeout: float) -> bool:
    """Have a client learn the cluster's topics before it needs one: left to itself it looks only once a second. Whether it did."""
    try:
        client.list_topics(timeout=timeout)
    except KafkaException:
        return False
    return True
