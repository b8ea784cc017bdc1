"""Runs one function that a model wrote against known answers, apart from itself and within limits.

The generator copies this file into every task, followed by one line that calls `main` with that task's cases: as
`check.py` in the workspace (visible cases, one line of report) and as `tests/verify.py` (hidden cases, the fraction
passed). It needs the standard library only and stays light: it is started with `python3 -I -S` once per check. The
function runs in a forked child that has no terminal, one second of processor time and no right to write files; what it
prints, an exit, a crash or an endless loop only lose the cases they touch.
"""

import os
import resource
import select
import sys
import time

CPU_SECONDS = 1
WALL_SECONDS = 10.0
MEMORY_BYTES = 512 << 20
SHOWN = 40

Case = tuple[tuple[object, ...], object]


def _limit(reply: int) -> None:
    """No input, no output but `reply`, no files, no endless loops."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(quiet, fd)
    os.dup2(reply, 3)
    os.closerange(4, 256)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _answer(source: str, name: str, args: tuple[object, ...]) -> str:
    """The repr of one call's result, or the name of what it raised, on one line."""
    try:
        scope: dict[str, object] = {"__name__": "solution"}
        exec(compile(source, "solution.py", "exec"), scope)  # noqa: S102 - running it is the purpose
        function = scope[name]
        if not callable(function):
            return "!NotCallable"
        return "=" + repr(function(*args)).replace("\n", " ")
    except BaseException as error:
        return "!" + type(error).__name__


def _child(source: str, name: str, cases: list[Case], reply: int) -> None:
    """Answers the cases one after the other, each on a line, and never returns."""
    try:
        _limit(reply)
        for args, _ in cases:
            os.write(3, (_answer(source, name, args) + "\n").encode())
    finally:
        os._exit(0)


def _collect(pipe: int) -> str:
    """What the child says until it ends or the wall clock's limit has passed."""
    deadline, said = time.monotonic() + WALL_SECONDS, b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0 and poll.poll(left * 1000):
        chunk = os.read(pipe, 65536)
        if not chunk:
            break
        said += chunk
    return said.decode(errors="replace")


def answers(source: str, name: str, cases: list[Case]) -> list[str]:
    """One line a case: '=' and the repr of the result, or '!' and the name of the error ('!NoAnswer' for those it never reached)."""
    pipe, reply = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(pipe)
        _child(source, name, cases, reply)
    os.close(reply)
    try:
        lines = _collect(pipe).split("\n")[:-1]
    finally:
        os.close(pipe)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return [*lines, *["!NoAnswer"] * len(cases)][: len(cases)]


def passed(lines: list[str], cases: list[Case]) -> list[bool]:
    """Which answers are right: the repr of the wanted value, exactly (so 1 is not True and a tuple is not a list)."""
    return [line == "=" + repr(want) for line, (_, want) in zip(lines, cases, strict=True)]


def report(name: str, lines: list[str], cases: list[Case]) -> str:
    """'ok', or the first visible case that fails: `f(3) -> 4, want 5`."""
    for line, right, (args, want) in zip(lines, passed(lines, cases), cases, strict=True):
        if not right:
            return f"{name}({', '.join(map(repr, args))}) -> {line[1:][:SHOWN]}, want {want!r}"
    return "ok"


def main(name: str, cases: list[Case]) -> int:
    """`check.py [solution.py [reward.txt]]`: prints the report, or writes the fraction of passed cases to reward.txt."""
    path = sys.argv[1] if len(sys.argv) > 1 else "solution.py"
    source = ""
    if os.path.isfile(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            source = file.read()
    lines = answers(source, name, cases)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(f"{sum(passed(lines, cases)) / len(cases):g}\n")
    else:
        print(report(name, lines, cases), end="")
    return 0
