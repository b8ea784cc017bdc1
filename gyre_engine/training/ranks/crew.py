"""The other ranks of a cell: processes that its leader forks, has work, and takes with it.

promises  a rank does not outlive its leader; a leader that loses a rank ends with an error at once, also while it is idle; a rank
          that answers no more ends it after `limit_s`; what no start mends in a rank is the leader's end for good

Fork before the process has threads: a fork copies the calling one alone. Orders go over a pipe as msgpack, because ranks wait for them
without a limit; tensors go over the process group (gloo on the loopback).
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from gyre_engine.dead_end import DEAD_END, DeadEnd
from gyre_engine.lifeline import die_with_parent
from gyre_engine.training.model.megatron_core import parallel_state
from gyre_engine.training.ranks.orders import decode, encode

logger = logging.getLogger(__name__)

LIMIT_S = 600.0
"""For one collective, and for one answer: as long as the slowest rank may compute a micro-step."""


class RankLost(RuntimeError):
    """A rank of this cell ended, or did not answer in time: the cell's trainer must start anew."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks find each other: a file that they share, in a folder of its own."""

    folder: Path
    ranks: int
    limit_s: float

    def join(self, rank: int) -> None:
        """Make this process rank `rank` of the group."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo", store=FileStore(str(self.folder / "store"), self.ranks), rank=rank, world_size=self.ranks,
            timeout=datetime.timedelta(seconds=self.limit_s),
        )  # fmt: skip


@dataclass(slots=True)
class Crew:
    """The workers of one leader, which is rank 0."""

    limit_s: float
    _pipes: dict[int, Connection] = field(default_factory=dict)
    _pids: dict[int, int] = field(default_factory=dict)
    _closing: bool = False

    @classmethod
    def fork(cls, ranks: int, make: Callable[[int], Any], *, scratch: str = "", limit_s: float = LIMIT_S) -> tuple[Crew, Any]:
        """Ranks 1..ranks - 1 as processes that obey, and `make(0)` in this one, each made after the group is complete.

        make: gives a rank's object; orders name its methods.
        """
        if (threads := _threads()) > 1:
            raise RankLost(
                f"this process has {threads} threads, and a fork would copy one of them: make a cell of several ranks in a process of "
                "its own, before it opens a log, with OMP_NUM_THREADS=1 from its start"
            )
        if dist.is_initialized():
            raise RankLost("this process belongs to a process group already: a cell of several ranks needs a process of its own")
        if scratch:
            Path(scratch).mkdir(parents=True, exist_ok=True)
        meeting = Meeting(Path(tempfile.mkdtemp(prefix="ranks-", dir=scratch or None)), ranks, limit_s)
        crew = cls(limit_s)
        try:
            for rank in range(1, ranks):
                crew._fork_one(rank, meeting, make)
            crew._watch()
            meeting.join(0)
            own = make(0)
            for rank in crew._pids:
                crew.answer(rank)
        finally:
            shutil.rmtree(meeting.folder, ignore_errors=True)
        return crew, own

    def tell(self, rank: int, method: str, *args: Any) -> None:
        """Have a rank call `method` of its object. `answer` must follow."""
        try:
            self._pipes[rank].send_bytes(encode([method, args]))
        except OSError as error:
            raise RankLost(f"rank {rank} of this cell is gone: {error}") from error

    def answer(self, rank: int) -> Any:
        """What its last call returned."""
        try:
            if self._pipes[rank].poll(self.limit_s):
                return decode(self._pipes[rank].recv_bytes())
        except (OSError, EOFError) as error:
            raise RankLost(f"rank {rank} of this cell is gone: {error!r}; its error stands above in this log") from error
        raise RankLost(f"rank {rank} of this cell gave no answer for {self.limit_s:.0f} s")

    def close(self) -> None:
        """Let the ranks end, and leave the group."""
        self._closing = True
        for pipe in self._pipes.values():
            pipe.close()
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    def _fork_one(self, rank: int, meeting: Meeting, make: Callable[[int], Any]) -> None:
        ours, theirs = Pipe()
        leader = os.getpid()
        pid = os.fork()
        if pid == 0:
            for pipe in (ours, *self._pipes.values()):
                pipe.close()  # else the leader's end would stay open after the leader
            _become(rank, leader, theirs, meeting, make)
        theirs.close()
        self._pipes[rank], self._pids[rank] = ours, pid

    def _watch(self) -> None:
        for rank, pid in self._pids.items():
            threading.Thread(target=self._await, args=(rank, pid), daemon=True, name=f"rank-{rank}").start()

    def _await(self, rank: int, pid: int) -> None:
        """Reap a rank. Where it should not have ended, nothing that this process does can succeed any more: end it."""
        _, status = os.waitpid(pid, 0)
        if not self._closing:
            code = os.waitstatus_to_exitcode(status)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            logger.critical("rank %d of this cell (process %d) %s: its leader ends too", rank, pid, how)
            os._exit(DEAD_END if code == DEAD_END else os.EX_SOFTWARE)


def _threads() -> int:
    """Those of this process, whoever started them."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _become(rank: int, leader: int, orders: Connection, meeting: Meeting, make: Callable[[int], Any]) -> NoReturn:
    """Be a rank until the leader closes its end. Signals to the whole group are the leader's to act on."""
    status = os.EX_SOFTWARE
    try:
        die_with_parent(leader)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        meeting.join(rank)
        _obey(make(rank), orders)
        status = os.EX_OK
    except BaseException as error:
        traceback.print_exc()
        status = DEAD_END if isinstance(error, DeadEnd) else status
    finally:
        os._exit(status)


def _obey(rank: Any, orders: Connection) -> None:
    orders.send_bytes(encode(None))
    with contextlib.suppress(EOFError):
        while True:
            method, args = decode(orders.recv_bytes())
            orders.send_bytes(encode(getattr(rank, method)(*args)))
