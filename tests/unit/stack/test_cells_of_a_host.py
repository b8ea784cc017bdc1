"""Cells that a host starts later and lets go: who is asked for runs once, who has left stays away, also when a run is resumed."""

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gyre_engine.config import Config, to_json, with_overrides
from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellEnded,
    CellHealth,
    CellLost,
    CellRole,
    CellStarted,
    CellWanted,
    LeaveWanted,
    RoleChanged,
    SwitchRole,
)
from gyre_engine.events.log import RunEnded, RunStarted
from gyre_engine.log.memory import MemoryLog
from gyre_engine.log.runs import RunInfo, end_run, find_run, resume_run, start_run
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.scheduling.cells import Fleet, observe
from gyre_engine.training.fingerprint import fingerprint
from infra.cli.cells import _has_left, _key, _name, _properties, add_cells, drain_cell
from infra.cli.errors import CommandError
from infra.stack.cells import CellKeeper, Wanted
from infra.stack.far_run import CannotJoin, FarCellSettings, FarRun
from infra.stack.launch import CellPlace, Launch
from infra.stack.layout import StackFolder
from infra.stack.versions import versions
from infra.supervisor.spec import ProcessSpec, ProcessStatus, State


@dataclass
class Processes:
    """Stands in for the supervisor: what was started and ended."""

    states: dict[str, State] = field(default_factory=dict)

    def start(self, *specs: ProcessSpec) -> None:
        self.states |= {spec.name: State.RUNNING for spec in specs}

    def end(self, name: str) -> None:
        self.states[name] = State.STOPPED

    def statuses(self) -> tuple[ProcessStatus, ...]:
        return tuple(ProcessStatus(name, state) for name, state in self.states.items())


def started(cell: str, position: int, role: CellRole = CellRole.SAMPLING) -> CellStarted:
    return CellStarted(
        cell=cell, position=position, incarnation="1", engine="native", engine_url="http://h:1", capacity=8, role=role,
        weight_version=0,
    )  # fmt: skip


def left(cell: str) -> RoleChanged:
    return RoleChanged(cell=cell, incarnation="1", role=CellRole.LEFT, command_epoch=1, command_number=3)


LOST = CellLost(epoch=1, number=9, cell="new", incarnation="1", words=9, silent_us=60_000_000)


def keeper(log: MemoryLog, folder: Path, processes: Processes) -> CellKeeper:
    launch = Launch(
        run="r", config=to_json(Config()), bootstrap_servers="127.0.0.1:1", prefix="gyre", partitions=4, replication=1,
        proxy_url="", cells=(CellPlace("cell-0", 0, "http://127.0.0.1:3"),), clickhouse_url="",
    )  # fmt: skip
    made = CellKeeper(launch, StackFolder(folder), processes, log.follow(("cells",)))  # type: ignore[arg-type]
    made.catch_up()
    return made


def test_a_cell_that_is_asked_for_twice_is_started_once_and_its_processes_end_when_it_has_left(tmp_path: Path) -> None:
    log, processes = MemoryLog(run="r"), Processes()
    kept = keeper(log, tmp_path, processes)
    log.append_all([CellWanted(cell="cell-3", position=3)] * 2)
    kept.tend()
    kept.tend()
    assert sorted(processes.states) == ["cell-3-agent", "cell-3-engine", "cell-3-trainer"]
    assert Launch.load(StackFolder(tmp_path)).cell("cell-3").position == 3
    processes.states["cell-3-agent"] = State.DONE
    kept.tend()
    assert [processes.states[f"cell-3-{part}"] for part in ("engine", "trainer")] == [State.STOPPED] * 2


def test_a_resumed_run_has_the_cells_that_it_had_and_not_those_that_left(tmp_path: Path) -> None:
    log, processes = MemoryLog(run="r"), Processes()
    asked = [CellWanted(cell=f"cell-{n}", position=n) for n in (3, 4)]
    log.append_all([*asked, started("cell-3", 3), started("cell-4", 4), left("cell-3")])
    keeper(log, tmp_path, processes).tend()
    assert sorted(processes.states) == ["cell-4-agent", "cell-4-engine", "cell-4-trainer"]


def test_who_came_up_only_to_leave_is_not_wanted() -> None:
    wanted = Wanted()
    for event in (CellWanted(cell="c", position=5), started("c", 5, CellRole.LEFT)):
        wanted.see(event)
    assert wanted.still() == {}


def test_added_cells_get_the_next_places_past_those_that_are_asked_for() -> None:
    log = MemoryLog(run="r")
    log.append_all([started("cell-0", 0), started("far-1", 3), CellWanted(cell="cell-4", position=4)])
    assert add_cells(log, Config(), 2, wait=False) == ["cell-5", "cell-6"]  # type: ignore[arg-type]


def test_what_is_added_before_the_runs_own_cells_have_spoken_takes_no_place_of_theirs() -> None:
    assert add_cells(MemoryLog(run="r"), with_overrides(Config(), ["cells.count=3"]), 1, wait=False) == ["cell-3"]  # type: ignore[arg-type]


def test_a_drain_is_refused_where_it_cannot_be() -> None:
    log = MemoryLog(run="r")
    log.append_all([started("cell-0", 0), started("cell-1", 1), started("cell-2", 2), left("cell-2")])
    for cell, said in (("cell-0", "is the core"), ("cell-2", "has left r already"), ("cel-1", "Did you mean cell-1")):
        with pytest.raises(CommandError, match=said):
            drain_cell(log, cell, wait=False)  # type: ignore[arg-type]
    drain_cell(log, "cell-1", wait=False)  # type: ignore[arg-type]
    assert [r.event for r in log.read("cells")][-1] == LeaveWanted(cell="cell-1", by="gyre cells drain")


def test_a_drain_of_a_cell_that_is_gone_without_a_word_waits_for_none() -> None:
    told = SwitchRole(epoch=1, number=1, cell="new", to=CellRole.LEFT, reason="", water_level=0, sampling_capacity=0)
    fleet = Fleet()
    for event in (started("new", 3), LOST):
        fleet = observe(fleet, event)
    assert not _has_left(fleet, "new")
    assert _has_left(observe(fleet, told), "new")


def test_a_drain_waits_until_the_cell_has_left() -> None:
    log = MemoryLog(run="r")
    log.append_all([started("cell-0", 0), started("cell-1", 1)])
    waiting = threading.Thread(target=drain_cell, args=(log, "cell-1", True))
    waiting.start()
    while not any(isinstance(record.event, LeaveWanted) for record in log.read("cells")):
        assert waiting.is_alive()
    log.append_all([left("cell-1")])
    waiting.join(20)
    assert not waiting.is_alive()


def standing(*events: Event, ended: RunEnded | None = None, **pinned: object) -> FarRun:
    fleet = Fleet()
    for event in events:
        fleet = observe(fleet, event)
    facts: dict[str, object] = {"versions": versions(), "fingerprint": fingerprint(1)} | pinned
    run = RunStarted(
        run="r", config=to_json(Config()), config_hash="h", partitions={}, initial_weights="", initial_weights_hash="",
        topic_prefix="gyre.r", **facts,  # type: ignore[arg-type]
    )  # fmt: skip
    return FarRun(RunInfo("r", 0, run, None, ended), fleet, None)


def join(name: str = "new", *, other_hardware: bool = False) -> FarCellSettings:
    return FarCellSettings("r", name, "10.0.0.2", KafkaSettings("10.0.0.1:9092"), other_hardware)


def test_a_cell_joins_behind_all_others() -> None:
    there = standing(started("cell-0", 0), started("cell-2", 2), started("standalone-0", -1))
    there.require_open(join())
    assert there.position("new") == 3
    early = standing(started("standalone-0", -1))
    assert early.position("new") == Config().cells.count, "the run's own cells come, which have not spoken yet"


@pytest.mark.parametrize("name", ["cell-0", "added"])
def test_the_runs_own_cells_are_never_replaced_from_elsewhere(name: str) -> None:
    """Who took the place of a core that is lost for a moment would be a second core."""
    there = replace(standing(started(name, 0)), own=frozenset({"cell-0", "added"}))
    with pytest.raises(CannotJoin, match=f"{name} is a cell of the run's own host"):
        there.require_open(join(name))


def test_a_cell_that_died_without_a_word_comes_back_to_its_place() -> None:
    there = standing(started("cell-0", 0), started("new", 1), started("cell-2", 2), LOST)
    there.require_open(join())
    assert there.position("new") == 1


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (standing(ended=RunEnded(run="r", outcome="completed", reason="", steps=3)), r"r is over \(completed\)"),
        (standing(started("new", 3)), "a cell named new is in r: give another --name, or, if it is this host's that died, wait"),
        (standing(started("new", 3), left("new")), "a cell named new has left r"),
        (standing(versions={**versions(), "torch": "1.0"}), "torch was 1.0, here it is"),
        (
            standing(fingerprint={**fingerprint(1), "numerics": "0"}),
            "r cannot have a cell of another Gyre: numerics was 0, here it is",
        ),
        (standing(fingerprint={**fingerprint(1), "cpu": "another"}), "cpu was another.*--other-hardware joins all the same"),
    ],
)
def test_what_keeps_a_cell_out_is_said_before_anything_starts(there: FarRun, said: str) -> None:
    with pytest.raises(CannotJoin, match=said):
        there.require_open(join())


def test_other_hardware_is_let_in_where_it_is_wanted() -> None:
    standing(fingerprint={**fingerprint(1), "cpu": "another"}).require_open(join(other_hardware=True))
    with pytest.raises(CannotJoin, match="another Gyre"):
        standing(fingerprint={**fingerprint(1), "numerics": "0"}).require_open(join(other_hardware=True))


def test_a_run_on_the_loopback_takes_cells_of_its_own_host_alone() -> None:
    standing().require_reachable("127.0.0.1")
    with pytest.raises(CannotJoin, match="--set cells.host=ADDRESS"):
        standing().require_reachable("10.0.0.2")


def test_the_cells_key_opens_nothing_else_and_is_its_owners_alone(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path / "run")
    key = folder.cell_key()
    assert key == folder.cell_key() and key not in folder.secret() and folder.secret() not in key
    assert folder.cell_key_file.stat().st_mode & 0o777 == 0o600
    other = StackFolder(tmp_path / "other")
    other.keep_cell_key(_key(other, folder.cell_key_file))
    assert other.cell_key() == key and _key(other, None) == b""
    with pytest.raises(CommandError, match="--key is missing: copy the file cell-key"):
        _key(StackFolder(tmp_path / "none"), None)
    with pytest.raises(CommandError, match="holds runs of its own: start the cell in another folder"):
        _key(folder, folder.cell_key_file)


def test_client_settings_come_from_a_file_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# ours\nsecurity.protocol=SASL_SSL\n\nsasl.password = a=b\n")
    assert _properties(path) == {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}
    path.write_text("security.protocol\n")
    with pytest.raises(CommandError, match=r"line 1: 'security.protocol' is no setting"):
        _properties(path)


@pytest.mark.parametrize("name", ["a b/c", "x" * 81, "../up", "ü"])
def test_a_name_that_could_be_no_files_name_is_refused(name: str) -> None:
    with pytest.raises(CommandError, match="use letters, digits"):
        _name(name)
    assert _name("rack-7.gpu_0") == "rack-7.gpu_0" and _name("")


def test_a_key_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\x00" * 32)
    with pytest.raises(CommandError, match="holds no cell key"):
        _key(StackFolder(tmp_path / "far"), tmp_path / "key")
    with pytest.raises(CommandError, match="there is no file"):
        _key(StackFolder(tmp_path / "far"), tmp_path / "none")


def test_a_cell_that_has_ended_counts_for_nothing_until_it_speaks() -> None:
    fleet = Fleet()
    for event in (started("cell-0", 0), started("guest", 3), CellEnded(cell="guest", incarnation="1")):
        fleet = observe(fleet, event)
    assert [state.cell for state in fleet.ordered] == ["cell-0"] and not fleet.serves("guest")
    back = observe(fleet, CellHealth(cell="guest", incarnation="1", healthy=True))
    assert back.serves("guest")
    assert observe(fleet, CellEnded(cell="cell-0", incarnation="0")).serves("cell-0"), "the word is of another start"


def test_a_run_that_goes_on_has_not_ended() -> None:
    log = MemoryLog(run="r")
    facts = {"config": "{}", "config_hash": "", "versions": {}, "partitions": {}, "fingerprint": {}, "initial_weights": ""}
    start_run(log, RunStarted(run="r", initial_weights_hash="", topic_prefix="", **facts))  # type: ignore[arg-type]
    end_run(log, RunEnded(run="r", outcome="stopped", reason="", steps=1))
    assert find_run(log, "r").ended is not None
    resume_run(log, "r")
    assert find_run(log, "r").ended is None
    end_run(log, RunEnded(run="r", outcome="completed", reason="", steps=9))
    ended = find_run(log, "r").ended
    assert ended is not None and ended.steps == 9
