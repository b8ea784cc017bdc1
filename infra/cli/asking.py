"""`gyre sql`: from the running stack's ClickHouse, the configured server, or the folder's own, opened for now.

Where the stack that had the folder was killed, its tables are brought to the end of its log first.
"""

from __future__ import annotations

import sys

from consumers.analytics.query import embedded_query, query, reader_address, running
from consumers.analytics.settings import url_file
from gyre_engine.log.kafka import KafkaLog
from infra.cli.attach import kafka
from infra.cli.errors import CommandError
from infra.cli.tables import bring_up_to_date
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.supervisor.spec import State
from infra.supervisor.state import StackState, read_state

OWNERS = ("analytics", "clickhouse")
"""The processes, of a run and of `gyre up`, that serve the folder's ClickHouse."""


def ask(folder: StackFolder, sql: str, form: str | None) -> int:
    """Print the rows; the exit status."""
    state = read_state(folder.root)
    if state is not None and state.serving and (served := state.facts.get("clickhouse_url")):
        own = folder.private().get("clickhouse.url")
        return query(reader_address(own or str(served)), sql, form, absent="" if own else _why_absent(folder, state))
    launch = Launch.load(folder) if folder.launch.exists() else None
    if launch is not None and launch.settings.clickhouse.url:
        return query(reader_address(folder.private().get("clickhouse.url", launch.clickhouse_url)), sql, form)
    if state is not None and state.serving and "clickhouse_url" not in state.facts:
        raise CommandError(_why_absent(folder, state))
    if not folder.clickhouse.exists():
        raise CommandError(f"{folder.root} holds no ClickHouse data: run an experiment with clickhouse.enabled first")
    if launch is not None and launch.settings.clickhouse.enabled and _was_killed(folder):
        _bring_up_to_date(folder, launch)
    return embedded_query(folder.clickhouse, sql, form)


def _was_killed(folder: StackFolder) -> bool:
    """Whether who owned the tables ended without a word: one that ends in order inserts what it read and takes its address along."""
    return url_file(folder.clickhouse).exists() and running(folder.clickhouse) is None


def _bring_up_to_date(folder: StackFolder, launch: Launch) -> None:
    """What its log has and the tables lack. Where that is not to be had now, it is said, and the tables answer as they are."""
    _say(f"the stack of {launch.run} was killed: its tables are brought to the end of its log first")
    try:
        with kafka(folder) as settings:
            log = KafkaLog(settings, launch.run)
            try:
                bring_up_to_date(log, launch.settings, folder)
            finally:
                log.close()
    except (RuntimeError, OSError) as error:  # the broker, the log, the folder: whatever keeps it away
        _say(f"the last steps of {launch.run} may be missing here: {error}")


def _say(text: str) -> None:
    print(f"gyre: {text}", file=sys.stderr)


def _why_absent(folder: StackFolder, state: StackState) -> str:
    """Why the ClickHouse of a stack that runs does not answer, and what to do."""
    owner = next((p for p in state.processes if p.name in OWNERS), None)
    if owner is None or not owner.last_exit:
        return f"the stack in {folder.root} is still starting, and its ClickHouse does not answer yet: try again in a moment"
    log = folder.logs / f"{owner.name}.log"
    if owner.state is State.FAILED:
        return f"{owner.name}, which serves ClickHouse, {owner.last_exit} and was given up; its log is {log}"
    return f"{owner.name}, which serves ClickHouse, {owner.last_exit} and starts again: try again in a moment; its log is {log}"
