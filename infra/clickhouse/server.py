"""The embedded ClickHouse as a process of a stack (`serve`) and as a program: `python -m infra.clickhouse.server FOLDER [--host H]
[--port N]`.

The program takes the writer's password from the environment, GYRE_CLICKHOUSE_PASSWORD, so that it never stands on a command line;
without one the server is read-only. Readers connect as `default` or `reader` without a password.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from consumers.analytics.embedded.engine import EngineSettings, FolderInUse
from consumers.analytics.embedded.request import Users
from consumers.analytics.embedded.service import Embedded
from gyre_engine.signals import stop_event

PASSWORD_VARIABLE = "GYRE_CLICKHOUSE_PASSWORD"  # noqa: S105 - the variable's name


def serve(folder: str, *, host: str = "127.0.0.1", port: int = 0, password: str = "") -> int:
    """Serve until SIGTERM or SIGINT. Exit code 1, with the reason, where the folder or the port cannot be had."""
    stopping = stop_event()
    try:
        with Embedded(EngineSettings(Path(folder)), Users(password or None), host=host, port=port) as server:
            sys.stdout.write(f"ClickHouse answers at {server.url}\n")
            sys.stdout.flush()
            stopping.wait()
    except (FolderInUse, RuntimeError) as error:
        sys.stderr.write(f"gyre: {error}\n")
        return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The program; its exit code is that of `serve`."""
    parser = argparse.ArgumentParser(prog="infra.clickhouse.server", description="ClickHouse's HTTP interface on a chDB folder")
    parser.add_argument("folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8123)
    options = parser.parse_args(arguments)
    return serve(options.folder, host=options.host, port=options.port, password=os.environ.get(PASSWORD_VARIABLE, ""))


if __name__ == "__main__":
    raise SystemExit(main())
