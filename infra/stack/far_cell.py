"""A cell on a host of its own: it learns of the run from the log, pulls the weights, and comes and goes while the run goes on.

reads     runs, cells, training (far_run has what is read before)
writes    cells: leave-wanted, when this host is told to stop; cell-ended, where it ends without having left
promises  nothing is shared with the run's host but the log and what is read through the Transfer port; the cell leaves in order
"""

from __future__ import annotations

import hashlib
import logging
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gyre_engine.events.cells import CellEnded, CellStarted, LeaveWanted
from gyre_engine.events.log import RunEnded
from gyre_engine.events.training import Published
from gyre_engine.log import Follower, LogUnavailable
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.names import RUNS
from gyre_engine.log.runs import find_run
from gyre_engine.scheduling.life import LifeLimits
from gyre_engine.transfer import PeerLost, TransferError
from gyre_engine.transfer.kinds import open_transfer
from gyre_engine.transfer.pull import Pull
from infra.stack.cells import PRELOADERS, cell_processes, end_those_that_left, has_left
from infra.stack.checks import check_cell_before_start
from infra.stack.far_run import CannotJoin, FarCellSettings, FarRun
from infra.stack.launch import CellPlace, Launch
from infra.stack.layout import StackFolder
from infra.stack.ports import free_ports
from infra.supervisor.spec import SupervisorEvent
from infra.supervisor.supervisor import Supervisor

logger = logging.getLogger(__name__)

PULL_LIMIT_S = 600.0
"""For the weights of a large model over a slow network."""
LEAVE_LIMIT_S = LifeLimits().sealing + 60.0
"""How long a cell may take to leave: the core may be merging a step that it has a part in."""
FIRST_PUBLICATION_S = 600.0
END_NOTE_S = 2.0


@dataclass(slots=True)
class FarCell:
    """One cell's time in a run: `start`, `follow` until it has left or the run is over, `stop` in any case."""

    settings: FarCellSettings
    folder: StackFolder
    say: Callable[[str], None]
    on_event: Callable[[SupervisorEvent], None] | None = None
    supervisor: Supervisor | None = None
    log: KafkaLog | None = None
    told_to_stop: threading.Event = field(default_factory=threading.Event)
    run: str = ""
    _asked_at: float = 0.0
    _runs: Follower | None = None
    _ended: RunEnded | None = None
    _incarnation: str = ""
    """Of the cell, from its first word until it has left."""

    def start(self) -> None:
        """Everything up to the cell's first word on the log. Raises CannotJoin, StackRunning, ProcessGaveUp and the log's errors."""
        settings = self.settings
        self.supervisor = Supervisor(self.folder.root, preload=PRELOADERS, on_event=self.on_event)
        self.folder.keep_private({f"kafka.{name}": value for name, value in settings.kafka.extra.items()})
        log, run = self._open_log(), FarRun.read
        there = run(log, self.run)
        there.require_open(settings)
        there.require_reachable(settings.host)
        check_cell_before_start(there.config, settings.host)
        self.supervisor.preload()
        published, model = self._weights(there)
        there = run(log, self.run)  # others may have come meanwhile
        launch = self._launch(there, published, model)
        if settings.key:
            self.folder.keep_cell_key(settings.key)  # it has opened the weights
        launch.save(self.folder)
        kafka = settings.kafka
        self.supervisor.note(run=self.run, cell=settings.name, bootstrap_servers=kafka.bootstrap_servers, prefix=kafka.prefix)
        self.supervisor.start(*cell_processes(launch, self.folder, launch.cells[0]))
        self._until_it_speaks(log)

    def _open_log(self) -> KafkaLog:
        """The run's, and who tells of its end."""
        kafka = self.settings.kafka
        first = KafkaLog(kafka, "-")
        try:
            self.run = find_run(first, self.settings.run).run
        finally:
            first.close()
        log = self.log = KafkaLog(kafka, self.run)
        self._runs = log.follow((RUNS,), from_end=True)
        return log

    def _launch(self, there: FarRun, published: Published, model: Path) -> Launch:
        settings, kafka = self.settings, self.settings.kafka
        url = f"http://{settings.host}:{free_ports(1, settings.host)[0]}"
        return Launch(
            run=self.run, config=there.info.started.config, bootstrap_servers=kafka.bootstrap_servers, prefix=kafka.prefix,
            partitions=kafka.partitions, replication=kafka.replication, proxy_url="", clickhouse_url="",
            cells=(CellPlace(settings.name, there.position(settings.name), url),), host=settings.host, model=str(model),
            model_version=published.version,
        )  # fmt: skip

    def _weights(self, there: FarRun) -> tuple[Published, Path]:
        """The newest publication that can be read: of a run that has just begun or been resumed its core has yet to make one."""
        published, why = there.published, "it has not published weights yet"
        while True:
            if published is not None:
                try:
                    return published, self._model(published, there)
                except PeerLost as error:
                    why = str(error)
            self.say(f"waiting for the core of {self.run} to publish: {why}")
            published = self._next_publication(published.core_epoch if published else 0, why)

    def _next_publication(self, epoch: int, why: str) -> Published:
        """Of a core of a later epoch."""
        assert self.log is not None
        follower, until = self.log.follow(("training",)), time.monotonic() + FIRST_PUBLICATION_S
        try:
            while time.monotonic() < until and not self.told_to_stop.is_set() and not self._is_over(0.0):
                for record in follower.poll(0.5):
                    if isinstance(record.event, Published) and record.event.core_epoch > epoch:
                        return record.event
        finally:
            follower.close()
        if self.told_to_stop.is_set() or self._ended:
            raise CannotJoin(f"{self.settings.name} was told to stop, or {self.run} ended, before there were weights: {why}")
        limit = f"{FIRST_PUBLICATION_S:.0f} s"
        raise CannotJoin(
            f"the core of {self.run} published nothing that can be read here within {limit}: {why}; is the way open?"
        )

    def _model(self, published: Published, there: FarRun) -> Path:
        """A model folder with the published weights. Raises PeerLost, or CannotJoin where they are not for this cell."""
        config, own, source = there.config, self.settings, there.config.cells.host
        self.say(f"pulling version {published.version} of the weights, {published.nbytes:,} bytes")
        transfer = open_transfer(config.transfer.kind, own.host, secret=own.key or self.folder.cell_key())
        try:
            image = Pull(transfer).read(published.weights_hash, published.nbytes, published.descriptor, PULL_LIMIT_S)
        except PeerLost:
            raise
        except TransferError as error:
            raise CannotJoin(f"the weights cannot be read from {source}: {error}; is --key the run's cell-key?") from error
        finally:
            transfer.close()
        if hashlib.sha256(image.data).hexdigest() != published.weights_hash:
            raise CannotJoin(f"what {source} sent is not version {published.version} as it was published")
        folder = self.folder.scratch / self.run / own.name / "model"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in there.info.started.model_files.items():
            (folder / Path(name).name).write_text(text, encoding="utf-8")
        (folder / "model.safetensors").write_bytes(image.data)
        return folder

    def _until_it_speaks(self, log: KafkaLog) -> None:
        """Wait for the cell's own word. Raises ProcessGaveUp, or CannotJoin at the limit."""
        assert self.supervisor is not None
        limit, follower = LifeLimits().starting, log.follow(("cells",))
        until = time.monotonic() + limit
        try:
            while time.monotonic() < until and not self.told_to_stop.is_set() and not self._is_over(0.0):
                self._require_processes()
                for record in follower.poll(0.5):
                    if isinstance(record.event, CellStarted) and record.event.cell == self.settings.name:
                        self._incarnation = record.event.incarnation
                        self.say(f"{self.settings.name} is in {self.run}, its engine at {record.event.engine_url}")
                        return
        finally:
            follower.close()
        if not self.told_to_stop.is_set() and not self._ended:
            raise CannotJoin(f"{self.settings.name} was not up within {limit:.0f} s; its logs are in {self.folder.logs}")

    def follow(self) -> str:
        """Until the cell has left or the run is over; how it ended, in words. Raises ProcessGaveUp."""
        assert self.supervisor is not None
        while not self._is_over(0.5):
            end_those_that_left(self.supervisor)
            if has_left(self.supervisor, self.settings.name):
                self._incarnation = ""
                return f"{self.settings.name} has left {self.run}"
            self._require_processes()
            if self.told_to_stop.is_set():
                self._ask_to_leave()
        assert self._ended is not None
        return f"{self.run} is over: {self._ended.outcome}"

    def _require_processes(self) -> None:
        """Raises ProcessGaveUp, or CannotJoin where the supervisor itself has ended."""
        assert self.supervisor is not None
        if self.supervisor.wait(0.0):
            raise CannotJoin(f"the processes of {self.settings.name} ended; their logs are in {self.folder.logs}")

    def _is_over(self, wait: float) -> bool:
        """Whether the run has ended, by its own word."""
        assert self._runs is not None
        for record in () if self._ended else self._runs.poll(wait):
            if isinstance(record.event, RunEnded) and record.event.run == self.run:
                self._ended = record.event
        return self._ended is not None

    def _ask_to_leave(self) -> None:
        """Once; the scheduler then lets the cell go. Raises CannotJoin where nobody does within the limit."""
        assert self.log is not None
        if not self._asked_at:
            self._asked_at = time.monotonic()
            self.say(
                f"{self.settings.name} leaves: its calls move on, what it has trained is handed over (once more Ctrl-C: at once)"
            )
            self.log.append_all([LeaveWanted(cell=self.settings.name, by="its host")])
        elif time.monotonic() - self._asked_at > LEAVE_LIMIT_S:
            raise CannotJoin(
                f"the scheduler of {self.run} did not let {self.settings.name} go within {LEAVE_LIMIT_S:.0f} s; it ends now"
            )

    def stop(self) -> None:
        """End what runs here, and say so where the run goes on without it."""
        if self.supervisor is not None:
            try:
                self.supervisor.stop()
            except RuntimeError as error:
                logger.error("%s", error)
        if self.log is not None and self._incarnation and self._ended is None:
            ended = self.log.append(CellEnded(cell=self.settings.name, incarnation=self._incarnation))
            with suppress(LogUnavailable, TimeoutError):
                ended.result(END_NOTE_S)
        if self._runs is not None:
            self._runs.close()
        if self.log is not None:
            self.log.close()


def leave_on_signals(cell: FarCell) -> None:
    """SIGINT and SIGTERM make the cell leave in order; the second one ends it at once."""

    def asked(number: int, _frame: object) -> None:
        if cell.told_to_stop.is_set():
            raise KeyboardInterrupt
        cell.told_to_stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked)
