"""The tables that `gyre sql` asks, of a run that no analytics process follows: brought to the end of its log.

reads     all topics of the run, and `runs`
writes    ClickHouse: the folder's own, or the server that the run's config names
"""

from __future__ import annotations

from urllib.parse import urlsplit

from clickhouse_connect.driver.exceptions import ClickHouseError

from consumers.analytics.process import ingest_to_end
from consumers.analytics.query import running
from consumers.analytics.settings import WRITER, AnalyticsSettings
from gyre_engine.config import Config, masked_url
from gyre_engine.log.port import Log
from infra.cli.errors import CommandError
from infra.stack.layout import StackFolder
from infra.supervisor.spec import State
from infra.supervisor.state import read_state

ANALYTICS = "analytics"
"""The process of a run that fills its tables."""
STANDING = "clickhouse"
"""The process of `gyre up`."""


def bring_up_to_date(log: Log, config: Config, folder: StackFolder) -> None:
    """Have the tables hold all that stands on the run's log now. Nothing where the run has none, or its stack fills them."""
    if not config.clickhouse.enabled or _is_followed(log.run, folder):
        return
    try:
        ingest_to_end(_settings(config, folder), log)
    except (RuntimeError, ClickHouseError, OSError) as error:
        said = " ".join(str(error).split())
        raise CommandError(f"what is new on the log of {log.run} is not in the tables yet: {said}") from error


def _is_followed(run: str, folder: StackFolder) -> bool:
    """Whether this folder's stack has this run, and an analytics process for it that is not given up."""
    state = read_state(folder.root)
    if state is None or not state.serving or state.facts.get("run") != run:
        return False
    return any(p.name == ANALYTICS and p.state in (State.RUNNING, State.WAITING) for p in state.processes)


def _settings(config: Config, folder: StackFolder) -> AnalyticsSettings:
    """The server of the config, the folder's own where it serves now (`gyre up`, another run), or that one opened for now."""
    if config.clickhouse.url:
        return AnalyticsSettings(url=_whole_url(config.clickhouse.url, folder))
    served, password = _standing(folder) or running(folder.clickhouse), folder.password()
    if served is None:
        return AnalyticsSettings(path=folder.clickhouse, password=password)
    return AnalyticsSettings(url=f"http://{WRITER}:{password}@{urlsplit(served).netloc}")


def _standing(folder: StackFolder) -> str | None:
    """Where the ClickHouse of `gyre up` answers."""
    state = read_state(folder.root)
    if state is None or not state.serving or not any(p.name == STANDING for p in state.processes):
        return None
    return str(state.facts["clickhouse_url"]) if "clickhouse_url" in state.facts else None


def _whole_url(pinned: str, folder: StackFolder) -> str:
    """With its password, which only the folder knows, and only of the last run's server."""
    private = folder.private().get("clickhouse.url", "")
    return private if masked_url(private) == pinned else pinned
