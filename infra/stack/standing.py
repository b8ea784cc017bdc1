"""`gyre up`: the broker and ClickHouse of a folder, without a run; other commands attach to them."""

from __future__ import annotations

from gyre_engine.config.schema import KafkaConfig
from infra.stack.kafka import start_broker
from infra.stack.layout import StackFolder
from infra.stack.ports import free_ports
from infra.supervisor.spec import ProcessSpec
from infra.supervisor.supervisor import Supervisor, until_signal

CLICKHOUSE_LIMIT_S = 90.0


def stand(folder: StackFolder) -> None:
    """Serve until SIGINT, SIGTERM or `gyre stop`."""
    folder.secret()
    supervisor = Supervisor(folder.root)
    try:
        clickhouse = _clickhouse(folder, free_ports(1)[0])
        supervisor.start(clickhouse)
        servers = start_broker(supervisor, folder)
        supervisor.wait_ready([clickhouse.name], CLICKHOUSE_LIMIT_S)
        url = f"http://127.0.0.1:{clickhouse.args['port']}"
        supervisor.note(bootstrap_servers=servers, prefix=KafkaConfig().prefix, clickhouse_url=url)
        print(f"kafka {servers}, clickhouse {url}", flush=True)
        until_signal(supervisor)
    finally:
        supervisor.stop()


def _clickhouse(folder: StackFolder, port: int) -> ProcessSpec:
    args = {"folder": str(folder.clickhouse), "port": port, "password": folder.password()}
    return ProcessSpec("clickhouse", target="infra.clickhouse.server:serve", args=args)
