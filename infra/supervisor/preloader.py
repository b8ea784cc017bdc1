"""The one parent of the heavy processes: imports torch and Megatron once, then forks a child for each order.

`python -m infra.supervisor.preloader PARENT_PID SOCKET_FD MODULE...`. It has one thread, so a fork copies a whole process. Messages
on the socket are msgpack maps. To it: {fork: name, target, args, env, log} and {signal: pid, number, group}. From it: {ready:
seconds, threads}, {forked: name, pid} and {ended: pid, status}. Whoever holds the other end ends it by closing the socket; its
children are tied to it, as it is to the supervisor.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from gyre_engine.lifeline import die_with_parent, name_process
from infra.supervisor.target import leave, run_target

Message = dict[str, Any]


class Preloader:
    """Serves fork orders on a socket until it is closed."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._orders = msgpack.Unpacker()
        self._children: set[int] = set()
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def load(self, modules: Sequence[str]) -> None:
        """Import the modules and freeze what they made, so that children share it."""
        begun = time.monotonic()
        for module in modules:
            importlib.import_module(module)
        gc.collect()
        gc.freeze()
        self._say({"ready": time.monotonic() - begun, "threads": len(os.listdir("/proc/self/task"))})

    def serve(self) -> None:
        """Obey until the other end closes."""
        watched = select.poll()  # select() knows no descriptor beyond 1023, and whoever starts this may hold many
        for descriptor in (self._link.fileno(), self._woken):
            watched.register(descriptor, select.POLLIN)
        while True:
            readable = {descriptor for descriptor, _ in watched.poll()}
            if self._woken in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self._reap()
            if self._link.fileno() in readable and not self._obey():
                return

    def _obey(self) -> bool:
        data = self._link.recv(65536)
        self._orders.feed(data)
        for order in self._orders:
            if "fork" in order:
                self._fork(order)
            elif order["signal"] in self._children:
                send_signal(order["signal"], order["number"], order["group"])
        return bool(data)

    def _fork(self, order: Message) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            become(order, parent, self._link)
        self._children.add(pid)
        self._say({"forked": order["fork"], "pid": pid})

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)
            send_signal(pid, signal.SIGKILL, group=True)
            self._say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})

    def _say(self, message: Message) -> None:
        self._link.sendall(msgpack.packb(message))


def become(order: Message, parent: int, link: socket.socket) -> None:
    """Turn the forked copy into the ordered process; does not return."""
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        link.close()
        _redirect(order["log"])
        _take_environment(order["env"])
        name_process(f"gyre:{order['fork']}")
        status = run_target(order["target"], order["args"])
    except BaseException as error:
        os.write(2, f"cannot become {order.get('fork')}: {error!r}\n".encode())
        os._exit(1)
    leave(status)


def send_signal(pid: int, number: int, group: bool) -> None:
    """Signal a process or its group; nothing where it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _redirect(log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)


def _take_environment(env: Mapping[str, str]) -> None:
    os.environ.update(env)
    for path in reversed(env.get("PYTHONPATH", "").split(os.pathsep)):
        if path and path not in sys.path:
            sys.path.insert(0, path)


def main() -> None:
    """Tie to the supervisor, import, serve."""
    die_with_parent(int(sys.argv[1]))
    name_process("gyre:preloader")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preloader = Preloader(socket.socket(fileno=int(sys.argv[2])))
    preloader.load(sys.argv[3:])
    preloader.serve()
    leave(0)


if __name__ == "__main__":
    main()
