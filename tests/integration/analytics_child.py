"""A process that ingests a log which is the same at every start, and tells after each insert how many rows it has put in.

Run by test_analytics_ingest.py, which kills it. `--count FOLDER` prints how many calls a folder holds.
"""

import json
import sys
from pathlib import Path

import clickhouse_connect

from consumers.analytics.ingest import Ingest
from consumers.analytics.process import serving
from consumers.analytics.settings import AnalyticsSettings
from consumers.analytics.store import Store
from gyre_engine.events.executions import ToolReturned
from gyre_engine.log.consumer import Reading
from gyre_engine.log.memory import MemoryLog

EVENTS, BATCH = 3_000, 40


def the_log() -> MemoryLog:
    log = MemoryLog(run="killed")
    for n in range(EVENTS):
        event = ToolReturned(execution=f"g.{n % 7}.0", tool_call=f"t{n}", source="proxy", content="x" * 10, nbytes=10)
        log.append(event, id=f"e{n}", at=1_700_000_000_000_000 + n)
    return log


class Telling(Ingest):
    """Inserts after each poll, and says so."""

    def idle(self) -> None:
        self.flush()
        print(self.inserted, flush=True)


def ingest(folder: Path) -> None:
    settings = AnalyticsSettings(path=folder, port=0, password="p", share=1.0)
    with serving(settings) as at:
        store = Store(at)
        store.prepare()
        reader = Telling(the_log(), store, settings)
        reader.reading = Reading(batch=BATCH)
        reader.run_to_end()
        client = clickhouse_connect.get_client(host=at.host, port=at.port)
        counts = "count(), uniqExact(event_id), uniqExact(partition, offset), sum(nbytes)"
        (found,) = client.query(f"SELECT {counts} FROM tool_events").result_rows
        print(json.dumps([reader.inserted, *found]))
        client.close()
        store.close()


def count(folder: Path) -> None:
    with serving(AnalyticsSettings(path=folder, port=0)) as at:
        client = clickhouse_connect.get_client(host=at.host, port=at.port)
        print(json.dumps(int(client.query("SELECT count() FROM model_calls").result_rows[0][0])))
        client.close()


if __name__ == "__main__":
    if sys.argv[1] == "--count":
        count(Path(sys.argv[2]))
    else:
        ingest(Path(sys.argv[1]))
