"""The supervisor with real processes: restarts, budgets, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.supervisor.children import alive, start_ticks
from infra.supervisor.spec import ProcessSpec, RestartPolicy, State, SupervisorEvent
from infra.supervisor.state import StackRunning, read_state, stop_stack
from infra.supervisor.supervisor import NotReady, ProcessGaveUp, Supervisor

HERE = str(Path(__file__).parent)
QUICK = RestartPolicy(limit=3, window_seconds=30, first_delay=0.05, longest_delay=0.2)
ENV = {"PYTHONPATH": HERE}


def spec(name: str, function: str, note: Path, **rest: object) -> ProcessSpec:
    args = {"note": str(note), **rest.pop("args", {})}  # type: ignore[dict-item]
    return ProcessSpec(name, target=f"supervised_targets:{function}", args=args, env=ENV, restart=QUICK, **rest)  # type: ignore[arg-type]


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a condition of another process, within a limit."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.01)


def pids(note: Path) -> list[int]:
    return [int(word) for word in note.read_text().split()] if note.exists() else []


@pytest.fixture
def events() -> list[SupervisorEvent]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, events: list[SupervisorEvent]) -> Iterator[Supervisor]:
    running = Supervisor(tmp_path / "stack", preload={"preloader": ["fractions"]}, on_event=events.append)
    yield running
    running.stop()


def test_what_earlier_stacks_wrote_stands_beside_a_new_log(tmp_path: Path) -> None:
    for word in ("first", "second"):
        supervisor = Supervisor(tmp_path / "stack")
        supervisor.start(ProcessSpec("echo", argv=("/bin/echo", word), ends=True))
        assert supervisor.wait(20)
        supervisor.stop()
    assert supervisor.log_file("echo").read_text() == "second\n"
    assert supervisor.log_file("echo").with_suffix(".log.1").read_text() == "first\n"


def test_a_process_that_fails_is_started_again_after_growing_delays(
    supervisor: Supervisor, events: list[SupervisorEvent], tmp_path: Path
) -> None:
    note = tmp_path / "note"
    supervisor.start(spec("c", "crasher", note, args={"times": 2}))
    until(lambda: len(pids(note)) == 4)  # two failed starts; the third notes itself twice
    assert [e.text for e in events if e.kind == "restarting"] == [
        "ended with status 1; again in 0.05 s",
        "ended with status 1; again in 0.1 s",
    ]
    (status,) = supervisor.statuses()
    assert (status.state, status.restarts) == (State.RUNNING, 2)
    assert "a reason in the log" in supervisor.log_file("c").read_text()


def test_a_spent_budget_is_one_line_with_the_log_and_the_error_there(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "note"
    supervisor.start(spec("c", "crasher", note, args={"times": 99}))
    with pytest.raises(ProcessGaveUp) as error:
        supervisor.wait(30)
    assert str(error.value) == (
        "c ended with status 1 and was restarted 3 times; it is given up; "
        f"its log is {supervisor.log_file('c')}: RuntimeError: a reason in the log"
    )
    assert len(pids(note)) == 4
    assert supervisor.statuses()[0].state is State.FAILED


@pytest.mark.parametrize("heavy", [False, True])
def test_a_process_that_no_start_can_mend_is_given_up_at_once_and_heard_to_its_end(
    supervisor: Supervisor, events: list[SupervisorEvent], tmp_path: Path, heavy: bool
) -> None:
    said = "step 2: " + "so it is " * 100 + "and no more"
    supervisor.start(spec("c", "hopeless", tmp_path / "note", heavy=heavy, args={"reason": said}))
    with pytest.raises(ProcessGaveUp) as error:
        supervisor.wait(30)
    assert str(error.value) == f"c: {said} (another start would end the same way; its log is {supervisor.log_file('c')})"
    assert len(pids(tmp_path / "note")) == 1
    assert [e.text for e in events if e.kind == "gave-up"] == ["ended with status 78: another start would end the same way"]
    assert supervisor.statuses()[0].state is State.FAILED


def test_a_process_killed_from_outside_is_restarted_whatever_its_status(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "note"
    supervisor.start(spec("s", "sleeper", note))
    until(lambda: len(pids(note)) == 1)
    os.kill(pids(note)[0], signal.SIGTERM)  # ends with status 0
    until(lambda: len(pids(note)) == 2)
    os.kill(pids(note)[1], signal.SIGKILL)
    until(lambda: len(pids(note)) == 3)


def test_a_process_that_may_end_is_done(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(spec("f", "finisher", tmp_path / "note", ends=True))
    assert supervisor.wait(20)
    (status,) = supervisor.statuses()
    assert (status.state, status.restarts) == (State.DONE, 0)


def test_an_ending_process_with_a_bad_status_is_not_done(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(spec("f", "finisher", tmp_path / "note", ends=True, args={"status": 3}))
    with pytest.raises(ProcessGaveUp, match="f ended with status 3"):
        supervisor.wait(20)


def test_stages_end_one_after_the_other_and_the_stubborn_is_killed(tmp_path: Path) -> None:
    events: list[SupervisorEvent] = []
    supervisor = Supervisor(tmp_path / "stack", on_event=events.append, stop_seconds=2.0)
    notes = [tmp_path / name for name in ("last", "first", "stubborn")]
    supervisor.start(
        spec("last", "sleeper", notes[0], stage=9),
        spec("first", "sleeper", notes[1]),
        spec("stubborn", "stubborn", notes[2]),
    )
    until(lambda: all(pids(note) for note in notes))
    begun = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - begun < 4.0
    stopped = [(e.name, e.text) for e in events if e.kind == "stopped"]
    assert sorted(stopped[:2]) == [("first", "ended with status 0"), ("stubborn", "killed by signal 9")]
    assert stopped[2:] == [("last", "ended with status 0")]
    assert "ended cleanly" in supervisor.log_file("last").read_text()


def test_what_a_dead_process_left_in_its_group_is_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "note"
    supervisor.start(spec("p", "parent", note))
    until(lambda: len(pids(note)) == 2)
    (main,) = (s.pid for s in supervisor.statuses())
    (child,) = set(pids(note)) - {main}
    os.kill(main, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{child}").exists() or not alive(child, start_ticks(child)))


def test_arguments_are_not_on_the_command_line(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "note"
    supervisor.start(spec("k", "secret_holder", note, ends=True, args={"secret": "correct-horse"}))
    supervisor.wait(20)
    assert note.read_text().split()[1:] == ["False", "13"]


def test_a_program_is_run_and_a_missing_one_is_named(supervisor: Supervisor) -> None:
    supervisor.start(ProcessSpec("echo", argv=("/bin/sh", "-c", "echo from a program; exit 0"), ends=True))
    supervisor.wait(20)
    assert supervisor.log_file("echo").read_text() == "from a program\n"
    supervisor.start(ProcessSpec("none", argv=("/no/such/program",), restart=RestartPolicy(limit=0)))
    with pytest.raises(ProcessGaveUp, match="cannot start /no/such/program: No such file"):
        supervisor.wait(20)


def test_a_process_that_is_not_ready_in_time_is_named(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(spec("s", "sleeper", tmp_path / "note", ready=lambda: False))
    with pytest.raises(NotReady, match=r"s was not ready within 0 s; its log is .*s\.log"):
        supervisor.wait_ready(["s"], 0.3)
    supervisor.start(spec("t", "sleeper", tmp_path / "other", ready=lambda: bool(pids(tmp_path / "other"))))
    supervisor.wait_ready(["t"], 20)


def test_a_heavy_child_has_what_was_preloaded_and_restarts_at_no_cost(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "note"
    order = ProcessSpec(
        "h", target="supervised_targets:heavy", args={"note": str(note)}, env={**ENV, "MARK": "m"}, heavy=True, restart=QUICK
    )
    supervisor.start(order)
    until(lambda: len(pids(note)) == 1)
    assert Path(f"{note}.modules").read_text() == "True m 1"
    first = pids(note)[0]
    supervisor.wait_ready(["h"], 5)
    assert supervisor.statuses()[0].pid == first and supervisor.statuses()[0].heavy
    os.kill(first, signal.SIGKILL)
    until(lambda: len(pids(note)) == 2)
    assert supervisor.statuses()[0].last_exit == "killed by signal 9"


def test_when_the_preloader_dies_it_and_its_children_come_back(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "note"
    supervisor.start(spec("h", "heavy", note, heavy=True))
    until(lambda: len(pids(note)) == 1)
    first = pids(note)[0], start_ticks(pids(note)[0])
    until(lambda: any(p.name == "preloader" for p in (read_state(supervisor.folder) or pytest.fail("no state")).processes))
    state = read_state(supervisor.folder)
    assert state is not None
    (preloader,) = (p.pid for p in state.processes if p.name == "preloader")
    os.kill(preloader, signal.SIGKILL)
    until(lambda: not alive(*first))
    until(lambda: len(pids(note)) == 2)


def test_a_preloader_that_cannot_import_gives_up_by_name(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "stack", preload={"preloader": ["no_such_module_at_all"]})
    supervisor.start(spec("h", "heavy", tmp_path / "note", heavy=True))
    with pytest.raises(ProcessGaveUp, match=r"h has no parent: preloader ended with status 1.*no_such_module_at_all"):
        supervisor.wait(30)
    supervisor.stop()


STACK = """
import sys
from pathlib import Path
from infra.supervisor.spec import ProcessSpec
from infra.supervisor.supervisor import Supervisor, until_signal
folder, here = Path(sys.argv[1]), sys.argv[2]
supervisor = Supervisor(folder, preload={"preloader": ["fractions"]})
def one(name, function, **rest):
    return ProcessSpec(name, target=f"supervised_targets:{function}", args={"note": str(folder / name)},
                       env={"PYTHONPATH": here}, **rest)
supervisor.start(one("light", "sleeper"), one("stubborn", "stubborn"), one("heavy", "heavy", heavy=True),
                 ProcessSpec("program", argv=("/bin/sh", "-c", "exec sleep 1000"), stage=9))
supervisor.note(run="r", ports={"proxy": 1})
print("up", flush=True)
until_signal(supervisor)
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A stack of four processes in a process of its own, all of them up."""
    folder = tmp_path / "own"
    with subprocess.Popen([sys.executable, "-c", STACK, str(folder), HERE], cwd=Path(HERE).parents[1]) as process:
        until(lambda: all(pids(folder / name) for name in ("light", "stubborn", "heavy")))
        until(lambda: len(_running(folder)) == 5)
        yield process, folder
        process.kill()


def _running(folder: Path) -> list[tuple[int, int]]:
    state = read_state(folder)
    return [] if state is None else [(p.pid, p.start) for p in state.left_over()]


def test_a_killed_supervisor_leaves_nothing(stack: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, folder = stack
    living = _running(folder)
    process.kill()
    process.wait()
    until(lambda: not any(alive(*one) for one in living), seconds=5)
    again = Supervisor(folder)  # the lock went with the process
    again.stop()


def test_ctrl_c_ends_all_within_ten_seconds(stack: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, folder = stack
    living = _running(folder)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 0
    assert time.monotonic() - begun < 10.0
    assert not any(alive(*one) for one in living)


def test_another_command_sees_and_stops_the_stack(stack: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, folder = stack
    state = read_state(folder)
    assert state is not None and state.running
    assert state.facts == {"run": "r", "ports": {"proxy": 1}}
    with pytest.raises(StackRunning, match=f"process {process.pid}.*gyre stop"):
        Supervisor(folder)
    assert stop_stack(folder)
    assert _running(folder) == []
    assert not stop_stack(folder)


def test_two_folders_hold_two_stacks(tmp_path: Path) -> None:
    one, two = Supervisor(tmp_path / "one"), Supervisor(tmp_path / "two")
    one.start(spec("s", "sleeper", tmp_path / "a"))
    two.start(spec("s", "sleeper", tmp_path / "b"))
    until(lambda: pids(tmp_path / "a") and pids(tmp_path / "b"))
    one.stop()
    assert two.statuses()[0].state is State.RUNNING
    two.stop()


def test_arguments_are_plain_values() -> None:
    with pytest.raises(ValueError, match="process 'p': args take plain values only"):
        ProcessSpec("p", target="m:f", args={"path": Path("/")})
