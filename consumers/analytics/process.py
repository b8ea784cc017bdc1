"""The analytics process: owns ClickHouse where no server is configured, and keeps every topic of the run in it.

reads     all topics of the run, and `runs`
writes    ClickHouse: one table a topic
promises  stops on SIGTERM or SIGINT after inserting what it has read; what it could not insert is read again at the next start
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from consumers.analytics.ingest import Ingest
from consumers.analytics.settings import DATABASE, WRITER, Address, AnalyticsSettings, address, url_file
from consumers.analytics.store import Store
from gyre_engine.log.consumer import Report, serve
from gyre_engine.log.port import Log
from gyre_engine.signals import stop_event

log = logging.getLogger(__name__)


def run(settings: AnalyticsSettings, log_: Log, stop: threading.Event | None = None, report: Report | None = None) -> None:
    """Serve and ingest until SIGTERM, SIGINT or `stop`."""
    stopping = stop or stop_event()
    with _store(settings) as store:
        serve(Ingest(log_, store, settings, report=report), stopping)


def ingest_to_end(settings: AnalyticsSettings, log_: Log) -> int:
    """Insert what stands on the log now and the tables lack; how many rows that were."""
    with _store(settings) as store:
        ingest = Ingest(log_, store, settings)
        ingest.run_to_end()
        return ingest.inserted


@contextlib.contextmanager
def _store(settings: AnalyticsSettings) -> Iterator[Store]:
    """The tables, made and mended, of a server that readers find."""
    with serving(settings) as at:
        store = Store(at, retry_seconds=settings.insert_retry_seconds)
        try:
            store.prepare()
            _announce(settings, at)
            yield store
        finally:
            store.close()


def _announce(settings: AnalyticsSettings, at: Address) -> None:
    """Say where the embedded server answers, for `gyre sql` and the like: readers need no password."""
    if settings.url is None and settings.path is not None:
        url_file(settings.path).write_text(f"http://{at.host}:{at.port}\n")
    log.info("ClickHouse answers at http://%s:%d", at.host, at.port)


@contextlib.contextmanager
def serving(settings: AnalyticsSettings) -> Iterator[Address]:
    """Where the writer connects: the server that `url` names, or the embedded one, which lives as long as this context."""
    if settings.url is not None:
        yield address(settings.url, user="default", password=settings.password, database=settings.database)
        return
    from consumers.analytics.embedded.engine import EngineSettings
    from consumers.analytics.embedded.request import Users
    from consumers.analytics.embedded.service import Embedded

    if settings.path is None:
        raise ValueError("analytics needs a folder (path) for the embedded ClickHouse, or clickhouse.url")
    engine = EngineSettings(settings.path, settings.database)
    with Embedded(engine, Users(settings.password or None), host=settings.host, port=settings.port) as embedded:
        yield Address(embedded.host, embedded.port, False, WRITER, settings.password, settings.database)
    url_file(settings.path).unlink(missing_ok=True)


__all__ = ["DATABASE", "AnalyticsSettings", "ingest_to_end", "run", "serving"]
