"""Starts the processes of a stack, keeps them up, ends them in order.

One thread starts and watches everything: the kernel ties children to the thread that started them, so whatever ends this process,
a SIGKILL too, ends them. Heavy processes are forked by preloaders (`nest`), which are tied in the same way.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.supervisor.charge import Charge
from infra.supervisor.logs import Logs
from infra.supervisor.nest import Nest
from infra.supervisor.nursery import PRELOADERS
from infra.supervisor.spec import ProcessSpec, ProcessStatus, State, SupervisorEvent, describe_exit
from infra.supervisor.state import StackLock, write_state

log = logging.getLogger(__name__)
_TICK = 0.1
_LOGS_EVERY = 1.0
STOP_SECONDS = 8.5
"""How long a whole stop may take; what has not ended by then is killed."""
SAME_END = "another start would end the same way"


class ProcessGaveUp(RuntimeError):
    """A process kept ending and its budget of restarts is spent, or it said that another start would end the same way; the text, one
    line, names it, its last exit, its log and what that says last."""


class NotReady(RuntimeError):
    """A process was not ready within its limit; the text names it and its log."""


class Supervisor:
    """The processes of one folder. `start` and `stop` may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        *,
        preload: Mapping[str, Sequence[str]] = PRELOADERS,
        on_event: Callable[[SupervisorEvent], None] | None = None,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.folder = folder.absolute()
        self._on_event = on_event
        self._stop_seconds = stop_seconds
        self._lock = StackLock(self.folder)
        self._logs = Logs(self.folder / "logs")
        self._logs.begin()
        self._logs_due = 0.0
        self._facts: dict[str, Any] = {}
        self._charges: dict[str, Charge] = {}
        self._nests = {name: Nest(name, modules, self.log_file(name)) for name, modules in preload.items()}
        self._orders: list[Callable[[], None]] = []
        self._mutex = threading.Lock()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._broken: Exception | None = None
        self._wake_out, self._wake_in = socket.socketpair()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._thread.start()

    def preload(self) -> None:
        """Begin to import what the heavy processes need, so that it is there when they are started."""
        for nest in self._nests.values():
            self._order(nest.open)

    def start(self, *specs: ProcessSpec) -> None:
        """Start processes. Heavy ones wait for the preloader."""
        for spec in specs:
            with self._changed:
                if spec.name in self._charges and self._charges[spec.name].state in (State.RUNNING, State.WAITING):
                    raise ValueError(f"a process named {spec.name!r} runs already")
                if spec.heavy and spec.parent not in self._nests:
                    raise ValueError(f"process {spec.name!r}: no preloader is named {spec.parent!r}")
                self._charges[spec.name] = Charge(spec)
        if any(spec.heavy for spec in specs):
            self.preload()
        self._order(lambda: None)

    def end(self, name: str, seconds: float = 5.0) -> None:
        """End one process (SIGTERM, then SIGKILL after `seconds`) and do not start it again."""
        with self._changed:
            self._charges[name].retire(time.monotonic() + seconds)
        self._order(lambda: None)

    def note(self, **facts: Any) -> None:
        """Put facts (run, ports) into `stack.json`."""
        with self._changed:
            self._facts.update(facts)
        self._order(self._write)

    def statuses(self) -> tuple[ProcessStatus, ...]:
        """Every process as it stands now."""
        with self._changed:
            return tuple(charge.status() for charge in self._charges.values())

    def wait_ready(self, names: Sequence[str], seconds: float) -> None:
        """Wait until each process is up and its `ready` says so. Raises NotReady or ProcessGaveUp."""
        until = time.monotonic() + seconds
        for name in names:
            charge = self._charges[name]
            while not (charge.state in (State.RUNNING, State.DONE) and charge.says_ready()):
                self._require_alive(charge)
                if self._stopping.is_set() or time.monotonic() > until:
                    raise NotReady(f"{name} was not ready within {seconds:.0f} s; {self.last_error(name)}")
                with self._changed:
                    self._changed.wait(0.05)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until a stop was asked for or all processes ended by themselves (True), or for `seconds` (False).
        Raises ProcessGaveUp."""
        until = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while not self._stopping.is_set():
                for charge in self._charges.values():
                    self._require_alive(charge)
                if self._charges and all(c.state in (State.DONE, State.STOPPED) for c in self._charges.values()):
                    return True
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(0.5 if left is None else min(left, 0.5))
        return True

    def request_stop(self) -> None:
        """Have everything end; returns at once. For signal handlers."""
        self._stopping.set()
        self._wake()

    def stop(self) -> None:
        """End everything in order of stages, within `stop_seconds`, and give the folder back."""
        self.request_stop()
        self._ended.wait(self._stop_seconds + 5.0)
        if self._broken is not None:
            raise RuntimeError("the supervisor of this stack broke") from self._broken

    def log_file(self, name: str) -> Path:
        """Where a process writes its stdout and stderr."""
        return self._logs.file(name)

    def last_error(self, name: str) -> str:
        """Where a process' log is and the error that stands last in it, on one line."""
        said = self._logs.last_error(name)
        return f"its log is {self.log_file(name)}{f': {said}' if said else ''}"

    def _require_alive(self, charge: Charge) -> None:
        name = charge.spec.name
        if charge.dead_end:
            said = self._logs.last_words(name)
            raise ProcessGaveUp(f"{name}: {said} ({SAME_END}; its log is {self.log_file(name)})")
        if charge.state is State.FAILED:
            raise ProcessGaveUp(
                f"{name} {charge.last_exit} and was restarted {charge.restarts} times; it is given up; {self.last_error(name)}"
            )

    def _order(self, work: Callable[[], None]) -> None:
        with self._mutex:
            self._orders.append(work)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.send(b".")

    def _supervise(self) -> None:
        try:
            while not self._stopping.is_set():
                self._listen(_TICK)
                self._take_orders()
                self._look()
            self._end_all()
        except Exception as error:
            log.exception("the supervisor broke; what it started ends with it")
            self._broken = error
        finally:
            self._stopping.set()
            self._lock.release()
            self._wake_in.close()
            self._wake_out.close()
            self._ended.set()

    def _listen(self, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_out, selectors.EVENT_READ)
            for nest in self._nests.values():
                if nest.nursery is not None:
                    selector.register(nest.nursery.link, selectors.EVENT_READ, nest)
            for key, _ in selector.select(seconds):
                if key.fileobj is self._wake_out:
                    self._wake_out.recv(4096)
                elif key.data.nursery.hear():
                    self._say("ready", key.data.policy, key.data.nursery.words())

    def _take_orders(self) -> None:
        with self._mutex:
            orders, self._orders = self._orders, []
        for work in orders:
            work()

    def _look(self) -> None:
        now = time.monotonic()
        watched = [self._watch(nest, now) for nest in self._nests.values()]
        changed = any(watched)
        with self._changed:
            charges = list(self._charges.values())
        for charge in charges:
            changed |= self._look_at(charge, now)
        if changed:
            self._write()
            with self._changed:
                self._changed.notify_all()
        if now >= self._logs_due:
            self._logs.bound()
            self._logs_due = now + _LOGS_EVERY

    def _look_at(self, charge: Charge, now: float) -> bool:
        status = charge.ended()
        if status is not None:
            self._say("ended", charge, describe_exit(status))
            self._after_end(charge, status, now)
            return True
        if charge.due(now) and self._can_start(charge):
            nest = self._nests.get(charge.spec.parent)
            charge.begin(nest.nursery if nest else None, self.log_file(charge.spec.name))
            self._say("started", charge, "heavy" if charge.spec.heavy else "")
            return True
        charge.press(now)
        return charge.learned_pid()

    def _after_end(self, charge: Charge, status: int, now: float) -> None:
        delay = charge.settle(status, now)
        if charge.state is State.FAILED:
            why = f": {SAME_END}" if charge.dead_end else f", {charge.restarts} restarts"
            self._say("gave-up", charge, f"{charge.last_exit}{why}")
        elif delay is not None:
            self._say("restarting", charge, f"{charge.last_exit}; again in {delay:.2g} s")

    def _can_start(self, charge: Charge) -> bool:
        return not charge.spec.heavy or self._nests[charge.spec.parent].ready

    def _watch(self, nest: Nest, now: float) -> bool:
        status = nest.lost()
        if status is None:
            return nest.open_again(now)
        self._say("ended", nest.policy, describe_exit(status))
        self._after_end(nest.policy, status or 1, now)
        if nest.policy.state is State.FAILED:
            self._fail_children(nest)
        return True

    def _fail_children(self, nest: Nest) -> None:
        for charge in list(self._charges.values()):
            if charge.spec.heavy and charge.spec.parent == nest.name:
                charge.fail(f"has no parent: {nest.name} {nest.policy.last_exit} ({self.last_error(nest.name)})")

    def _end_all(self) -> None:
        until = time.monotonic() + self._stop_seconds
        with self._changed:
            charges = list(self._charges.values())
            self._changed.notify_all()
        stages = sorted({charge.spec.stage for charge in charges})
        for at, stage in enumerate(stages):
            share = (until - time.monotonic()) * (1.0 if at == len(stages) - 1 else 0.6)
            self._end_stage([charge for charge in charges if charge.spec.stage == stage], share)
        for nest in self._nests.values():
            if nest.nursery is not None:
                nest.nursery.close(1.0)
        self._write()
        with self._changed:
            self._changed.notify_all()

    def _end_stage(self, charges: Sequence[Charge], seconds: float) -> None:
        kill_at = time.monotonic() + max(0.2, seconds)
        for charge in charges:
            charge.retire(kill_at)
        while any(charge.alive for charge in charges) and time.monotonic() < kill_at + 2.0:
            self._listen(0.02)
            for nest in self._nests.values():
                if nest.nursery is not None:
                    nest.nursery.lost()
            for charge in charges:
                charge.press(time.monotonic())
                if (status := charge.ended()) is not None:
                    charge.settle(status, time.monotonic())
                    self._say("stopped", charge, describe_exit(status))

    def _say(self, kind: str, charge: Charge, text: str) -> None:
        name, pid = charge.spec.name, charge.pid
        level = logging.INFO if kind in ("started", "stopped") else logging.WARNING
        log.log(level, "%s %s%s", name, kind, f": {text}" if text else "")
        if self._on_event is not None:
            self._on_event(SupervisorEvent(kind, name, pid, text))

    def _write(self) -> None:
        with self._changed:
            facts: Mapping[str, Any] = dict(self._facts)
        parents = [status for nest in self._nests.values() if (status := nest.status()) is not None]
        write_state(self.folder, facts, [*self.statuses(), *parents])


def until_signal(supervisor: Supervisor) -> None:
    """Wait for SIGINT or SIGTERM, or until all processes ended; then stop. A second SIGINT kills. Raises ProcessGaveUp."""

    def asked(number: int, _frame: object) -> None:
        if supervisor._stopping.is_set() and number == signal.SIGINT:
            signal.raise_signal(signal.SIGKILL)
        supervisor.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked)
    try:
        supervisor.wait()
    finally:
        supervisor.stop()
