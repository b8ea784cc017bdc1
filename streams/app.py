"""The Faust app of one run: an agent a derivation, over the records as they stand.

Faust consumes, shares out partitions and keeps positions; the fold, the outputs and the acknowledgements are the driver's. The
agents take records with `noack` and acknowledge by hand, since Faust acknowledges an event whose handler raised and so loses it: an
error here ends the process before anything is acknowledged. Faust reads uncommitted records too; nobody writes to event topics
inside transactions.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import faust
from faust.tables.manager import TableManager

from gyre_engine.log.credentials import broker_credentials
from gyre_engine.log.names import full_name, partitions_of
from gyre_engine.log.port import Raw
from streams.derivation import Position
from streams.driver import Driver, Stop
from streams.settings import StreamsSettings


class NoTables(TableManager):
    """Faust waits a second for tables to be registered; there are none."""

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


def build_app(settings: StreamsSettings, drivers: Sequence[Driver], stop: Stop) -> faust.App:
    """The app with one agent a driver. Nothing is connected yet."""
    app = faust.App(settings.app_id, **configuration(settings))
    for driver in drivers:
        _add_agent(app, settings, driver, stop)
    _require_all_partitions(app, settings, drivers, stop)
    return app


def configuration(settings: StreamsSettings) -> dict[str, Any]:
    """What Faust is told. Nothing is created on the broker, no table is kept, positions are committed every second."""
    servers = ";".join(f"kafka://{server}" for server in settings.kafka.bootstrap_servers.split(","))
    return {
        "broker": servers,
        "broker_credentials": broker_credentials(settings.kafka.extra),
        "consumer_group_instance_id": f"{settings.app_id}.{settings.instance}",
        "consumer_auto_offset_reset": "earliest",
        "consumer_max_fetch_size": settings.kafka.message_max_bytes,
        "broker_session_timeout": settings.session_s,
        "broker_heartbeat_interval": settings.session_s / 4,
        "broker_commit_interval": 1.0,
        "broker_commit_every": 1000,
        "stream_wait_empty": False,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "store": "memory://",
        "datadir": settings.data,
        "TableManager": NoTables,
        "web_enabled": settings.web_port is not None,
        "web_port": settings.web_port or 6066,
        "web_bind": "127.0.0.1",
        "key_serializer": "raw",
        "value_serializer": "raw",
    }


def _add_agent(app: faust.App, settings: StreamsSettings, driver: Driver, stop: Stop) -> None:
    derivation = driver.derivation
    names = {full_name(settings.kafka.prefix, settings.run, topic): topic for topic in derivation.sources}
    source = app.topic(*names, key_type=bytes, value_type=bytes, allow_empty=True)

    async def follow(stream: Any) -> None:
        async for event in stream.noack().events():
            try:
                driver.handle(record_of(event.message, names), event.ack)
                await driver.room()
            except Exception:
                stop(f"{derivation.name} cannot go on:\n{traceback.format_exc()}")

    async def settle() -> None:
        try:
            await driver.keep_settling()
        except Exception:
            stop(f"{derivation.name} cannot go on:\n{traceback.format_exc()}")

    app.agent(source, name=derivation.name, concurrency=1)(follow)
    settle.__name__ = f"settle {derivation.name}"
    app.task(settle)


def assigned_to(app: faust.App, settings: StreamsSettings) -> set[Position]:
    """The partitions that this worker has now, under their topics' short names."""
    prefix = f"{settings.kafka.prefix}.{settings.run}."
    return {(topic.removeprefix(prefix), partition) for topic, partition in app.consumer.assignment()}


def record_of(message: Any, names: dict[str, str]) -> Raw:
    """A Faust message under its topic's short name."""
    at_ms = int((message.timestamp or 0) * 1000)
    return Raw(names[message.topic], message.partition, message.offset, message.key, message.value, at_ms)


def _require_all_partitions(app: faust.App, settings: StreamsSettings, drivers: Sequence[Driver], stop: Stop) -> None:
    """A derivation over whole topics must not silently see a part of them because a second worker has joined."""
    whole = {
        full_name(settings.kafka.prefix, settings.run, t) for d in drivers if d.derivation.whole for t in d.derivation.sources
    }

    @app.on_partitions_assigned.connect(weak=False)
    async def look(sender: Any, assigned: Any, **kwargs: Any) -> None:
        missing = sorted(topic for topic in whole if not _complete(topic, assigned, settings))
        if missing:
            stop(
                f"another worker of {settings.app_id} has taken partitions of {', '.join(missing)}; admission and water-level "
                "need all of them: stop the other worker, or give it streams.derivations = ['trajectory-trees']"
            )


def _complete(topic: str, assigned: Any, settings: StreamsSettings) -> bool:
    short = topic.removeprefix(f"{settings.kafka.prefix}.{settings.run}.")
    return len([1 for name, _ in assigned if name == topic]) == partitions_of(short, settings.kafka.partitions)
