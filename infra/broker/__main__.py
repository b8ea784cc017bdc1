"""`python -m infra.broker DATA_DIR [--port N] [--host H]`: one broker in the foreground, until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from infra.broker.broker import Broker, BrokerSettings
from infra.broker.errors import BrokerError


def main() -> int:
    """Run a broker; 0 when it was asked to stop."""
    arguments = _parser().parse_args()
    broker = Broker(BrokerSettings(arguments.folder, arguments.host, arguments.port))
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: asked.set())
    try:
        broker.start()
    except BrokerError as error:
        print(f"gyre: {error}", file=sys.stderr)
        return 1
    print(f"broker up at {broker.bootstrap_servers}, pid {broker.pid}, log {broker.log_file}", flush=True)
    while not asked.wait(0.5) and broker.running:
        pass
    broker.stop()
    return 0 if asked.is_set() else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.broker", description="One local Apache Kafka broker.")
    parser.add_argument("folder", type=Path, help="where the broker keeps its data")
    parser.add_argument("--port", type=int, default=0, help="port for clients (default: a free one)")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (default: 127.0.0.1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
