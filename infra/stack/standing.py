"""`gyre up`: the broker and ClickHouse of a folder, without a run; other commands attach to them."""

from __future__ import annotations

from infra.broker.broker import Broker, BrokerSettings
from infra.stack.layout import StackFolder
from infra.stack.ports import free_ports
from infra.stack.processes import BROKER
from infra.supervisor.spec import ProcessSpec
from infra.supervisor.supervisor import Supervisor, until_signal

PREFIX = "gyre"
READY_LIMIT_S = 90.0


def stand(folder: StackFolder) -> None:
    """Serve until SIGINT, SIGTERM or `gyre stop`."""
    folder.secret()
    supervisor = Supervisor(folder.root)
    try:
        broker_port, clickhouse_port = free_ports(2)
        broker = Broker(BrokerSettings(folder.kafka, port=broker_port))
        supervisor.start(
            ProcessSpec("broker", argv=tuple(broker.prepare()), stage=BROKER, ready=broker.answers),
            ProcessSpec(
                "clickhouse", target="infra.stack.standing:clickhouse", args={"folder": str(folder.root), "port": clickhouse_port}
            ),
        )
        supervisor.wait_ready(["broker", "clickhouse"], READY_LIMIT_S)
        url = f"http://127.0.0.1:{clickhouse_port}"
        supervisor.note(bootstrap_servers=broker.bootstrap_servers, prefix=PREFIX, clickhouse_url=url)
        print(f"kafka {broker.bootstrap_servers}, clickhouse {url}", flush=True)
        until_signal(supervisor)
    finally:
        supervisor.stop()


def clickhouse(folder: str, port: int) -> None:
    """The folder's ClickHouse, served to readers until SIGTERM."""
    import signal
    import threading
    from pathlib import Path

    from consumers.analytics.process import serving
    from consumers.analytics.settings import AnalyticsSettings

    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    stack = StackFolder(Path(folder))
    with serving(AnalyticsSettings(path=stack.clickhouse, port=port, password=stack.password())):
        ending.wait()
