"""`gyre sql`: from the running stack's ClickHouse, the configured server, or the folder's own, opened for now."""

from __future__ import annotations

from consumers.analytics.query import embedded_query, query, reader_address
from infra.cli.errors import CommandError
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.supervisor.state import read_state


def ask(folder: StackFolder, sql: str, form: str | None) -> int:
    """Print the rows; the exit status."""
    state = read_state(folder.root)
    launch = Launch.load(folder) if folder.launch.exists() else None
    running = state is not None and state.serving
    if state is not None and running and state.facts.get("clickhouse_url"):
        return query(reader_address(folder.private().get("clickhouse.url", str(state.facts["clickhouse_url"]))), sql, form)
    if launch is not None and launch.clickhouse_url and (running or launch.settings.clickhouse.url):
        return query(reader_address(folder.private().get("clickhouse.url", launch.clickhouse_url)), sql, form)
    if not folder.clickhouse.exists():
        raise CommandError(f"{folder.root} holds no ClickHouse data: run an experiment with clickhouse.enabled first")
    return embedded_query(folder.clickhouse, sql, form)
