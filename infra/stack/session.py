"""A run from its start to its end on the stack of a folder: broker, topics, processes, and the record of it on `runs`.

reads     what the display shows (consumers.dashboard), cells (which are wanted, which have left)
writes    runs; cells: cell-ended, of other hosts' cells where a run is resumed
promises  whatever ends it, everything that was started here ends, and the log says how it ended where it answers
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from consumers.dashboard.notices import Notices
from consumers.dashboard.view import TOPICS, RunView
from gyre_engine.config import Config, config_hash, masked_url, to_json
from gyre_engine.events import Recorded
from gyre_engine.events.cells import CellEnded
from gyre_engine.events.log import RunEnded, RunStarted
from gyre_engine.harbor import stop_leftovers
from gyre_engine.log import Follower, LogUnavailable
from gyre_engine.log.brokers import require_safe
from gyre_engine.log.catching_up import catch_up
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.runs import end_run, find_run, resume_run, start_run
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import ensure_topics
from gyre_engine.training.fingerprint import fingerprint
from infra.stack import wiring
from infra.stack.cells import PRELOADERS, CellKeeper, own_cells, read_fleet
from infra.stack.checks import check_before_start
from infra.stack.health import forget
from infra.stack.kafka import kafka_settings, start_broker
from infra.stack.launch import Launch, keep_secrets
from infra.stack.layout import StackFolder
from infra.stack.pinned import reference_hash
from infra.stack.ports import free_ports
from infra.stack.processes import run_processes
from infra.stack.versions import versions
from infra.stack.weights import config_files, image_hash
from infra.supervisor.spec import SupervisorEvent
from infra.supervisor.supervisor import Supervisor

logger = logging.getLogger(__name__)

END_NOTE_S = 2.0


class StackEnded(RuntimeError):
    """The supervisor stopped while its run went on; the text says where the logs are."""


@dataclass(slots=True)
class Session:
    """One run. `start`, then `follow` until it is over, then `stop` in any case."""

    config: Config
    folder: StackFolder
    on_event: Callable[[SupervisorEvent], None] | None = None
    on_notice: Callable[[str], None] | None = None
    """Hears at once what a person has to know, a line at a time."""
    run: str = ""
    """Name of a run to go on with; empty: a new run."""
    pinned: str = ""
    """The config of that run, as its start pinned it."""
    supervisor: Supervisor | None = None
    launch: Launch | None = None
    log: KafkaLog | None = None
    view: RunView = field(init=False)
    _resumed: bool = field(init=False, default=False)
    on_the_log: bool = field(init=False, default=False)
    """There is a start of it on `runs`, so that it can be gone on with."""
    began: float = 0.0
    _notices: Notices | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.view = RunView(self.config.run.steps)
        self._resumed = self.on_the_log = bool(self.run)
        self.pinned = self.pinned or to_json(self.config)
        self.run = self.run or f"{self.config.run.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"

    def start(self) -> None:
        """Bring everything up. Raises ConfigError, BrokerError and the like before anything runs for long."""
        self.began = time.monotonic()
        check_before_start(self.config)
        self.folder.cell_key()
        self.supervisor = Supervisor(self.folder.root, preload=PRELOADERS, on_event=self.on_event)
        self.supervisor.preload()
        self._stop_environments()
        kafka = self._kafka()
        partitions = ensure_topics(kafka, self.run)
        self.launch = self._launch(kafka)
        keep_secrets(self.folder, self.config)
        self.launch.save(self.folder)
        forget(self.folder.health)
        self.log = KafkaLog(kafka, self.run)
        if self._resumed:
            self._resume(self.log)
        else:
            start_run(self.log, self._run_started(partitions, kafka))
            self.on_the_log = True
        self.supervisor.note(
            run=self.run, bootstrap_servers=kafka.bootstrap_servers, prefix=kafka.prefix, proxy_url=self.launch.proxy_url,
            clickhouse_url=self.launch.clickhouse_url, metrics_url=self.launch.metrics_url,
        )  # fmt: skip
        if self.on_notice is not None:
            self._notices = Notices(self.log.ends(TOPICS), self.on_notice)
        self.supervisor.start(*run_processes(self.launch, self.folder))

    def _resume(self, log: KafkaLog) -> None:
        """Say that the run goes on. Cells of other hosts ended with it, unless it was cut off without a word."""
        ended = find_run(log, self.run).ended is not None
        resume_run(log, self.run)
        if ended:
            fleet, own = read_fleet(log), own_cells(log, self.config)
            guests = [
                s for s in fleet.cells.values() if s.cell not in own and not fleet.leaves(s.cell) and not fleet.lost(s.cell)
            ]
            log.append_all([CellEnded(cell=s.cell, incarnation=s.incarnation) for s in guests])

    def follow(self, show: Callable[[RunView], None]) -> None:
        """Show progress and tend the cells until the runner says that all is done. Raises ProcessGaveUp or StackEnded."""
        assert self.supervisor is not None and self.log is not None and self.launch is not None
        follower, wanted = self.log.follow(TOPICS), self.log.follow(("cells",))
        try:
            keeper = CellKeeper(self.launch, self.folder, self.supervisor, wanted)
            keeper.catch_up()
            while True:
                for record in follower.poll(0.5):
                    self._see(record)
                if follower.at_end():  # a run that is resumed shows where it stands, not how its log begins
                    show(self.view)
                keeper.tend()
                over = self.supervisor.wait(0.0)
                if over and not self._runner_is_done():
                    raise StackEnded(
                        f"the processes of {self.run} ended before the run did; their logs are in {self.folder.logs}"
                    )
                if self._runner_is_done():
                    self._drain(follower)
                    return
        finally:
            follower.close()
            wanted.close()

    def stop(self, outcome: str, reason: str = "") -> None:
        """Note the end of the run while the broker answers (briefly: an end must not wait for a log that is away), end all."""
        try:
            if self.log is not None:
                ended = RunEnded(run=self.run, outcome=outcome, reason=reason, steps=self.view.step)
                try:
                    end_run(self.log, ended, timeout=END_NOTE_S)
                except (LogUnavailable, TimeoutError) as error:
                    logger.error("the end of %s could not be noted: %s", self.run, error)
                self.log.close()
        finally:
            if self.supervisor is not None:
                self.supervisor.stop()
                self._stop_environments()

    def _stop_environments(self) -> None:
        """Those of Harbor's that runner and scoring had no time to stop, of whichever run: none of this stack's is alive now."""
        stop_leftovers(self.folder.root / "workspaces", "*/*")
        stop_leftovers(self.folder.scratch, "*/scoring/*")

    def _runner_is_done(self) -> bool:
        assert self.supervisor is not None
        return any(s.name == "runner" and s.state == "done" for s in self.supervisor.statuses())

    def _drain(self, follower: Follower) -> None:
        catch_up(follower, self._see, "the display")

    def _see(self, record: Recorded) -> None:
        self.view.see(record.event)
        if self._notices is not None:
            self._notices.see(record)

    def _kafka(self) -> KafkaSettings:
        own = self.config.kafka
        servers, replication = own.bootstrap_servers, own.replication or (1 if own.allow_weak else 3)
        if not own.bootstrap_servers:
            assert self.supervisor is not None
            servers, replication = start_broker(self.supervisor, self.folder, own.host, own.port), own.replication or 1
        settings = kafka_settings(own, servers, replication, own.librdkafka)
        if own.bootstrap_servers and not own.allow_weak:
            for finding in require_safe(settings):
                logger.warning("%s", finding.text)
        return settings

    def _launch(self, kafka: KafkaSettings) -> Launch:
        config = self.config
        at, count = config.cells.host, len(wiring.positions(config))
        hosts = ("127.0.0.1", config.proxy.host, config.report.host, at)
        proxy_port, clickhouse_port, metrics_port, *ports = free_ports(3 + count, *hosts)
        clickhouse, metrics = "", ""
        if config.clickhouse.enabled:
            clickhouse = masked_url(config.clickhouse.url) or f"http://127.0.0.1:{clickhouse_port}"
        if config.report.enabled:
            metrics = f"http://{config.report.host}:{config.report.port or metrics_port}/metrics"
        return Launch(
            run=self.run, config=self.pinned, bootstrap_servers=kafka.bootstrap_servers, prefix=kafka.prefix,
            partitions=kafka.partitions, replication=kafka.replication,
            proxy_url=f"http://{config.proxy.host}:{config.proxy.port or proxy_port}",
            cells=wiring.places(config, at, ports), clickhouse_url=clickhouse, metrics_url=metrics, host=at,
        )  # fmt: skip

    def _run_started(self, partitions: dict[str, int], kafka: KafkaSettings) -> RunStarted:
        model = Path(self.config.model.path)
        weights = image_hash(model)
        return RunStarted(
            run=self.run, config=self.pinned, config_hash=config_hash(self.pinned),
            versions=versions(), partitions=partitions,
            fingerprint=fingerprint(self.config.cells.threads, self.config.training.device), initial_weights=model.as_uri(),
            initial_weights_hash=weights, reference_hash=reference_hash(self.config, weights), model_files=config_files(model),
            topic_prefix=f"{kafka.prefix}.{self.run}",
        )  # fmt: skip
