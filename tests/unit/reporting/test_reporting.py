"""The reporting process on a log in memory: each step reported once, whoever dies when; what Prometheus, TensorBoard and W&B get."""

from __future__ import annotations

import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from consumers.reporting.displays import Display
from consumers.reporting.process import Reporting, displays
from consumers.reporting.prometheus import PortTaken, Prometheus
from consumers.reporting.settings import ReportingSettings, WandbSettings
from consumers.reporting.tensorboard_file import TensorBoardFile
from consumers.reporting.wandb_run import WandbRun
from gyre_engine.events import Recorded
from gyre_engine.events.reports import StepReported
from gyre_engine.log.memory import MemoryLog
from tests.unit.reports import story

SETTINGS = ReportingSettings()


class Listener:
    """A display that notes what it is shown."""

    name = "a listener"

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.heard = threading.Event()
        self.closed = False

    def show(self, report: StepReported) -> None:
        self.steps.append(report.step)
        self.heard.set()

    def close(self) -> None:
        self.closed = True


def two_steps() -> MemoryLog:
    log = story.the_run()
    story.put(log, story.SECOND_STEP)
    return log


def reported(log: MemoryLog) -> list[Recorded]:
    return [r for r in log.read("training") if isinstance(r.event, StepReported)]


def steps(log: MemoryLog) -> list[int]:
    return [r.event.step for r in reported(log)]  # type: ignore[attr-defined]


def follow(log: MemoryLog, *shown: Display) -> None:
    Reporting(log, SETTINGS, shown).run_to_end()


def test_each_step_is_reported_once_and_shown_by_every_life() -> None:
    log = two_steps()
    for _ in range(3):
        listener = Listener()
        follow(log, listener)
        assert steps(log) == [1, 2]
        assert (listener.steps, listener.closed) == ([1, 2], True)


class Killed(Exception):
    pass


class Mortal(Reporting):
    """Dies before it handles its n-th record, those of its start included."""

    left = 0

    def handle(self, record: Recorded) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed
        super().handle(record)


def test_killed_at_any_record_it_loses_none_and_doubles_none() -> None:
    whole = two_steps()
    follow(whole)
    wanted = [(r.id, r.cause, r.at, replace(r.event, resume={})) for r in reported(whole)]  # type: ignore[type-var]
    records, lives = sum(whole.ends(story.TOPICS).values()), 0
    for n in range(0, 2 * records, 3):
        log = two_steps()
        mortal = Mortal(log, SETTINGS, ())
        mortal.left = n
        try:
            mortal.run_to_end()
        except Exception:
            lives += 1
        follow(log)
        found = [(r.id, r.cause, r.at, replace(r.event, resume={})) for r in reported(log)]  # type: ignore[type-var]
        assert found == wanted, n
    assert lives > 10


def test_a_report_that_somebody_else_wrote_meanwhile_counts_and_ours_changes_nothing() -> None:
    """A paused process wakes up behind its successor: both have written, the first is shown."""
    log = two_steps()
    follow(log)
    first = reported(log)[0]
    log.append(replace(first.event, reward_mean=9.0)).result()  # type: ignore[type-var]
    listener = Listener()
    follow(log, listener)
    assert listener.steps == [1, 2] and len(reported(log)) == 3


@pytest.fixture
def serving() -> Iterator[str]:
    """The text that the port gives once the second step is shown."""
    log, listener = two_steps(), Listener()
    prometheus = Prometheus("r", "127.0.0.1", 0)
    reporting = Reporting(log, SETTINGS, (prometheus, listener))
    thread = threading.Thread(target=reporting.run)
    thread.start()
    while listener.heard.wait(30.0) and listener.steps[-1] != 2:
        listener.heard.clear()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/metrics", timeout=10.0) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            yield answer.read().decode()
    finally:
        reporting.stop()
        thread.join(30.0)
    assert not thread.is_alive()


def test_what_prometheus_scrapes(serving: str) -> None:
    """Gauges of step 2 (two groups of zero variance, 6 tokens sampled each); totals of both (28 and 12 tokens sampled)."""
    samples = {
        (s.name, *sorted(v for k, v in s.labels.items() if k != "run")): s.value
        for family in text_string_to_metric_families(serving)
        for s in family.samples
    }
    runs = {s.labels["run"] for f in text_string_to_metric_families(serving) for s in f.samples}
    assert runs == {"r"}
    expected = {
        ("gyre_step",): 2, ("gyre_loss_total",): 0.625, ("gyre_loss_policy",): 0.5, ("gyre_optimizer_grad_norm",): 0.75,
        ("gyre_policy_entropy",): 1.5, ("gyre_policy_kl",): 0.01, ("gyre_policy_clip_fraction",): 0.2,
        ("gyre_ratio_tail", "above_2"): 0.2, ("gyre_ratio_tail_tokens", "above_10"): 1, ("gyre_ratio_max",): 12,
        ("gyre_drift_ratio_mean", "1"): 0.9, ("gyre_tokens_sampled",): 12, ("gyre_tokens_delivered_fraction",): 1,
        ("gyre_reward_mean",): 0.375, ("gyre_executions_scored",): 4, ("gyre_executions_discarded",): 0,
        ("gyre_groups_zero_variance",): 1, ("gyre_time_compute", "c1"): 2, ("gyre_time_merge", "c0"): 0.625,
        ("gyre_steps_total",): 2, ("gyre_run_tokens_total", "sampled"): 40, ("gyre_run_tokens_total", "delivered"): 39,
        ("gyre_run_groups_total", "trains"): 1, ("gyre_run_groups_total", "zero-variance"): 3,
        ("gyre_run_executions_total", "scored"): 8, ("gyre_run_executions_total", "discarded"): 1,
        ("gyre_run_executions_total", "evaluation-failed"): 1,
    }  # fmt: skip
    assert {name: samples.get(name) for name in expected} == expected
    assert ("gyre_policy_reference_kl",) not in samples, "there is no reference: nothing is said"
    assert not [name for name in samples if name[0].startswith("gyre_gap_max")], "no engine has measured a gap"


def test_a_port_that_is_taken_is_named_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    holder = Prometheus("r", "127.0.0.1", 0)
    try:
        with pytest.raises(PortTaken, match=f"127.0.0.1:{holder.port} .*set report.port"):
            Prometheus("r", "127.0.0.1", holder.port)
        assert displays(ReportingSettings(port=holder.port), "r") == []
        assert "set report.port" in caplog.text
    finally:
        holder.close()


def points(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """What TensorBoard itself reads: tag -> (step, time, value)."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(s.step, s.wall_time, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_what_tensorboard_reads(tmp_path: Path) -> None:
    """Commits at 8 s and 16 s of the story's clock; the first report stands between them on the ledger in no life here."""
    log = two_steps()
    for _ in range(2):
        follow(log, TensorBoardFile(tmp_path / "r"))
        found = points(tmp_path / "r")
        assert found["tokens/sampled"] == [(1, 8.0, 28.0), (2, 16.0, 12.0)]
        assert found["ratio/tail/above_2"] == [(1, 8.0, pytest.approx(0.2)), (2, 16.0, pytest.approx(0.2))]
        assert found["time/publish/c1"] == [(1, 8.0, 0.75), (2, 16.0, 0.75)]
        assert found["executions/left_out/discarded"] == [(1, 8.0, 1.0)]
        assert "policy/reference_kl" not in found
        assert len(list((tmp_path / "r").iterdir())) == 1


def test_a_board_that_was_cut_off_is_whole_again_and_files_of_others_stay(tmp_path: Path) -> None:
    log = two_steps()
    follow(log, TensorBoardFile(tmp_path))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    (tmp_path / "events.out.tfevents.1.somebody").write_bytes(b"")
    follow(log, TensorBoardFile(tmp_path))
    assert [step for step, *_ in points(tmp_path)["loss/total"]] == [1, 2]
    assert not file.exists() and (tmp_path / "events.out.tfevents.1.somebody").exists()


class FakeWandb:
    """The few names of the library that are used, as it documents them. A row is out of the process (in a file, or on the server)
    once the run is finished; `kill` lets the first few of those that were given get out. Offline it resumes nothing; online it goes
    on at the step after the server's last, and drops rows of earlier ones."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.out: list[list[tuple[int, dict[str, float]]]] = []
        self._given: list[tuple[int, dict[str, float]]] = []
        self.step, self.refused, self.fails = 0, 0, False

    def Settings(self, **given: Any) -> SimpleNamespace:
        return SimpleNamespace(**given)

    def init(self, **given: Any) -> FakeWandb:
        self.begun.append(given)
        self._given = []
        known = [] if given["mode"] == "offline" else [step for life in self.out for step, _ in life]
        self.step = max(known) + 1 if known else 0
        return self

    def log(self, data: dict[str, float], step: int, commit: bool) -> None:
        if self.fails:
            raise ConnectionError("no network")
        assert commit, "without it a row is not finished before the next one comes"
        if step < self.step:
            self.refused += 1
        else:
            self._given.append((step, data))
            self.step = step + 1

    def finish(self) -> None:
        self.kill(len(self._given))

    def kill(self, left: int) -> None:
        self.out.append(self._given[:left])

    @property
    def steps(self) -> list[list[int]]:
        """Of each life."""
        return [[step for step, _ in life] for life in self.out]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    monkeypatch.setenv("WANDB_API_KEY", "very-secret")
    return fake


def sent_to(project: str, folder: Path, mode: str = "offline") -> ReportingSettings:
    return ReportingSettings(wandb=WandbSettings(project, mode, folder, {"run": {"steps": 2}}))


def test_what_weights_and_biases_gets(wandb: FakeWandb, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    log = two_steps()
    follow(log, *displays(sent_to("p", tmp_path), "r"))
    assert wandb.steps == [[1, 2]]
    row = wandb.out[0][0][1]
    assert row["tokens/dedup_ratio"] == 1.5 and row["time/compute/c1"] == 2.0
    (begun,) = wandb.begun
    assert (begun["project"], begun["id"], begun["mode"], begun["resume"]) == ("p", "r", "offline", "allow")
    assert begun["config"] == {"run": {"steps": 2}} and begun["settings"].console == "off"
    told = [repr(wandb.begun), caplog.text, *(repr(r) for r in log.read("training"))]
    assert not [text for text in told if "very-secret" in text]


@pytest.mark.parametrize(
    ("mode", "left", "lives"),
    [
        ("offline", 2, [[1, 2], [1, 2]]),
        ("offline", 1, [[1], [1, 2]]),
        ("offline", 0, [[], [1, 2]]),
        ("online", 2, [[1, 2], []]),
        ("online", 1, [[1], [2]]),
        ("online", 0, [[], [1, 2]]),
    ],
)
def test_what_a_kill_kept_from_weights_and_biases_the_next_life_sends(
    wandb: FakeWandb, tmp_path: Path, mode: str, left: int, lives: list[list[int]]
) -> None:
    """Offline each life's file is whole; online the server has each step once, and nothing is sent that it would refuse."""
    log, settings = two_steps(), sent_to("p", tmp_path, mode)
    follow(log)
    killed = WandbRun("r", settings.wandb)  # type: ignore[arg-type]
    for record in reported(log):
        killed.show(record.event)  # type: ignore[arg-type]
    wandb.kill(left)
    follow(log, *displays(settings, "r"))
    assert (wandb.steps, wandb.refused) == (lives, 0)


def test_where_it_fails_the_others_go_on(wandb: FakeWandb, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wandb.fails = True
    log, listener = two_steps(), Listener()
    follow(log, *displays(sent_to("p", tmp_path), "r"), listener)
    assert (listener.steps, steps(log)) == ([1, 2], [1, 2])
    assert "Weights & Biases shows nothing any more" in caplog.text
    wandb.fails = False
    follow(log, *displays(sent_to("p", tmp_path), "r"))
    assert wandb.steps == [[1, 2]], "the next life sends what was missed"


def test_without_the_library_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    made = displays(sent_to("p", tmp_path), "r")
    try:
        assert [d.name for d in made] == ["Prometheus"]
        assert "uv sync --extra wandb" in caplog.text
    finally:
        for display in made:
            display.close()
