"""One local Kafka broker: prepare its folder, start the JVM, wait until it answers, stop it cleanly."""

from __future__ import annotations

import logging
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gyre_engine.lifeline import tied
from infra.broker.errors import BrokerError
from infra.broker.jars import kafka_jars
from infra.broker.java import find_java
from infra.broker.node import Node, new_cluster_id
from infra.supervisor.spec import ProcessSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """A local broker. `port` 0 takes a free one; the controller's port is always a free one."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 0
    message_max_bytes: int = 16 * 1024 * 1024
    ready_seconds: float = 120.0
    stop_seconds: float = 8.0


class Broker:
    """A Kafka broker of our own. The JVM dies with the thread that called `start`."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        port = settings.port or free_port(settings.host)
        folder = settings.folder.absolute()
        self._node = Node(folder, settings.host, port, free_port(settings.host), settings.message_max_bytes)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self._node.port

    @property
    def bootstrap_servers(self) -> str:
        return f"{self._node.host}:{self._node.port}"

    @property
    def pid(self) -> int:
        """Process id of the JVM. Raises BrokerError where it was not started."""
        if self._process is None:
            raise BrokerError("the broker was not started")
        return self._process.pid

    @property
    def log_file(self) -> Path:
        return self._node.folder / "broker.log"

    def prepare(self) -> list[str]:
        """Fetch what is missing, write the configuration, format the folder once; the command that runs the broker."""
        require_free(self._node.host, self._node.port)
        base = self._node.command(find_java(), kafka_jars())
        self._node.write()
        if not self._node.formatted:
            self._format(base)
        return [*base, "kafka.Kafka", str(self._node.properties_file)]

    def start(self) -> Broker:
        """Run the broker and wait until it answers. Raises BrokerError (port in use, no Java, not up within the limit)."""
        command = self.prepare()
        with self.log_file.open("ab") as out:
            self._process = subprocess.Popen(
                tied(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, process_group=0
            )
        self._wait_until_ready(self._process)
        return self

    def spec(self, stage: int = 9) -> ProcessSpec:
        """The broker as a process of a stack: it is started again after a crash, and ends last. Prepares the folder first."""
        return ProcessSpec("broker", argv=tuple(self.prepare()), stage=stage, ready=self.answers)

    def answers(self) -> bool:
        """Whether the broker serves its metadata now."""
        return serves(self.bootstrap_servers)

    def stop(self) -> None:
        """End the broker cleanly; kill it where that takes longer than `stop_seconds`."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(self.settings.stop_seconds)
        except subprocess.TimeoutExpired:
            log.warning("the broker did not stop within %.0f s and is killed", self.settings.stop_seconds)
            self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def running(self) -> bool:
        """Whether the JVM lives."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _format(self, base: list[str]) -> None:
        tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", new_cluster_id()]
        command = [*base, *tool, "-c", str(self._node.properties_file)]
        done = subprocess.run(tied(command), capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise BrokerError(f"cannot format {self._node.folder}: {done.stderr.strip()[-600:] or done.stdout[-600:]}")

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        limit = time.monotonic() + self.settings.ready_seconds
        while not serves(self.bootstrap_servers):
            if process.poll() is not None:
                raise BrokerError(f"the broker ended with status {process.returncode} while starting; {self._last_lines()}")
            if time.monotonic() > limit:
                self.kill()
                raise BrokerError(f"the broker was not up within {self.settings.ready_seconds:.0f} s; {self._last_lines()}")
            time.sleep(0.05)

    def _last_lines(self) -> str:
        text = self.log_file.read_text(errors="replace")[-800:].strip() if self.log_file.exists() else ""
        return f"the end of {self.log_file}:\n{text}"


def serves(bootstrap_servers: str, timeout: float = 1.0) -> bool:
    """Whether a broker at `bootstrap_servers` answers a metadata request within `timeout` seconds."""
    from gyre_engine.log.topics import answers

    host, _, port = bootstrap_servers.rpartition(":")
    return _connects(host, int(port)) and answers(bootstrap_servers, timeout)


def _connects(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=0.5):
            return True
    except OSError:
        return False


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def require_free(host: str, port: int) -> None:
    """Raise BrokerError where somebody listens on `port` already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BrokerError(
                f"port {port} on {host} cannot be used ({error.strerror}): "
                "stop what listens there, or start again: where no port is given, a free one is taken."
            ) from error
