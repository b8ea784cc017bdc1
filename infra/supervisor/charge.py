"""One process in the supervisor's care: running or not, when it is due again, whether its budget is spent."""

from __future__ import annotations

import signal
from collections import deque
from pathlib import Path

from gyre_engine.dead_end import DEAD_END
from infra.supervisor.children import Child, LightChild, start_ticks
from infra.supervisor.nursery import Nursery
from infra.supervisor.spec import ProcessSpec, ProcessStatus, State, describe_exit


class Charge:
    """The life of one ProcessSpec. Times are monotonic seconds. All but `status` belongs to the supervising thread."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.state = State.WAITING
        self.restarts = 0
        self.last_exit = ""
        self.dead_end = False
        """It has said that another start would end the same way."""
        self._child: Child | None = None
        self._due = 0.0
        self._start = 0
        self._exits: deque[float] = deque()
        self._retired = False
        self._kill_at = 0.0
        self._asked = False

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None else 0

    @property
    def alive(self) -> bool:
        return self._child is not None

    def status(self) -> ProcessStatus:
        """As it stands now."""
        return ProcessStatus(self.spec.name, self.state, self.pid, self._start, self.restarts, self.spec.heavy, self.last_exit)

    def says_ready(self) -> bool:
        """Whether it has a pid, and its own check (if any) says so."""
        return (self.pid > 0 or self.state is State.DONE) and (self.spec.ready is None or self.spec.ready())

    def due(self, now: float) -> bool:
        """Whether it is to be started now."""
        return self.state is State.WAITING and self._child is None and not self._retired and now >= self._due

    def begin(self, nursery: Nursery | None, log_file: Path) -> None:
        """Start it."""
        if self.spec.heavy:
            assert nursery is not None
            self._child = nursery.fork(self.spec, log_file)
        else:
            self._child = LightChild(self.spec, log_file)
        self._start = start_ticks(self.pid) if self.pid else 0
        self.state = State.RUNNING

    def learned_pid(self) -> bool:
        """Whether the pid of a heavy process has just become known."""
        if self._child is None or self._start or not self._child.pid:
            return False
        self._start = start_ticks(self._child.pid)
        return True

    def ended(self) -> int | None:
        """Its exit status where it has just ended."""
        return None if self._child is None else self._child.poll()

    def settle(self, status: int, now: float) -> float | None:
        """Note an end and decide what follows; the delay until the restart, or None where none follows."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL, group=True)
        self._child, self._start = None, 0
        self.last_exit = describe_exit(status)
        if self._retired:
            self.state = State.STOPPED
            return None
        if status == 0 and self.spec.ends:
            self.state = State.DONE
            return None
        if self.spec.target and status == DEAD_END:
            self.state, self.dead_end = State.FAILED, True
            return None
        return self._again(now)

    def _again(self, now: float) -> float | None:
        policy = self.spec.restart
        while self._exits and now - self._exits[0] > policy.window_seconds:
            self._exits.popleft()
        if len(self._exits) >= policy.limit:
            self.state = State.FAILED
            return None
        delay = policy.delay(len(self._exits))
        self._exits.append(now)
        self.restarts += 1
        self._due = now + delay
        self.state = State.WAITING
        return delay

    def fail(self, reason: str) -> None:
        """Give it up for a reason of the supervisor's."""
        self.state, self.last_exit = State.FAILED, reason

    def retire(self, kill_at: float) -> None:
        """End it: SIGTERM at the next look, SIGKILL to its group at `kill_at`; it is not started again."""
        self._retired, self._kill_at = True, kill_at
        if self._child is None and self.state is State.WAITING:
            self.state = State.STOPPED

    def press(self, now: float) -> None:
        """Carry a retirement out, as far as its time has come."""
        if not self._retired or self._child is None:
            return
        if not self._asked and self.pid:
            self._child.signal(signal.SIGTERM)
            self._asked = True
        if now >= self._kill_at:
            self._child.signal(signal.SIGKILL, group=True)
