"""The embedded ClickHouse as a program: `python -m infra.clickhouse.server FOLDER [--host H] [--port N]`.

The writer's password comes from the environment, GYRE_CLICKHOUSE_PASSWORD, so that it never stands on a command line; without one
the server is read-only. Readers connect as `default` or `reader` without a password.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from consumers.analytics.embedded.engine import EngineSettings, FolderInUse
from consumers.analytics.embedded.request import Users
from consumers.analytics.embedded.service import Embedded

PASSWORD_VARIABLE = "GYRE_CLICKHOUSE_PASSWORD"  # noqa: S105 - the variable's name


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 1, with the reason, where the folder or the port cannot be had."""
    parser = argparse.ArgumentParser(prog="infra.clickhouse.server", description="ClickHouse's HTTP interface on a chDB folder")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8123)
    options = parser.parse_args(arguments)
    stopping = threading.Event()
    users = Users(os.environ.get(PASSWORD_VARIABLE))
    try:
        with Embedded(EngineSettings(options.folder), users, host=options.host, port=options.port) as server:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stopping.set())
            sys.stdout.write(f"ClickHouse answers at {server.url}\n")
            sys.stdout.flush()
            stopping.wait()
    except (FolderInUse, RuntimeError) as error:
        sys.stderr.write(f"gyre: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
