"""A preloader and what happens when it is lost: one parent of heavy processes, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from infra.supervisor.charge import Charge
from infra.supervisor.nursery import Nursery
from infra.supervisor.spec import ProcessSpec, ProcessStatus, RestartPolicy, State


class Nest:
    """The modules to import once, the preloader that has them (None: not open, or lost), and its own budget of restarts."""

    def __init__(self, name: str, modules: Sequence[str], log_file: Path) -> None:
        self.name = name
        self.nursery: Nursery | None = None
        self.policy = Charge(ProcessSpec(name, argv=(name,), restart=RestartPolicy(limit=3)))
        self._modules, self._log_file = tuple(modules), log_file

    @property
    def ready(self) -> bool:
        return self.nursery is not None and self.nursery.ready

    def open(self) -> None:
        """Begin to import."""
        if self.nursery is None:
            self.nursery = Nursery(self._modules, self._log_file)

    def lost(self) -> int | None:
        """The preloader's exit status where it has just been lost; it is closed then."""
        status = self.nursery.lost() if self.nursery is not None else None
        if status is not None and self.nursery is not None:
            self.nursery.link.close()
            self.nursery = None
        return status

    def open_again(self, now: float) -> bool:
        """Open it after a loss, when its delay is over. Whether that happened."""
        if self.nursery is None and self.policy.restarts and self.policy.due(now):
            self.open()
            self.policy.state = State.RUNNING
            return True
        return False

    def status(self) -> ProcessStatus | None:
        """The preloader as a process, where it runs."""
        if self.nursery is None:
            return None
        return ProcessStatus(self.name, State.RUNNING, self.nursery.process.pid, self.nursery.start)
