"""A run's reporting: who is started, what it is told, and what is said before the start where it could not work."""

from __future__ import annotations

import importlib.util
import json
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

from gyre_engine.config import Config, ConfigError, to_json, with_overrides
from infra.stack import checks, wiring
from infra.stack.launch import CellPlace, Launch
from infra.stack.layout import StackFolder
from infra.stack.processes import DERIVING, SHOWING, run_processes

URL = "http://127.0.0.1:4321/metrics"


def launched(*given: str, metrics_url: str = URL) -> Launch:
    return Launch(
        run="r", config=to_json(with_overrides(Config(), given)), bootstrap_servers="127.0.0.1:1", prefix="gyre", partitions=4,
        replication=1, proxy_url="http://127.0.0.1:2", cells=(CellPlace("cell-0", 0, "http://127.0.0.1:3"),), clickhouse_url="",
        metrics_url=metrics_url,
    )  # fmt: skip


def told(config: Config) -> list[str]:
    return [problem.text for problem in checks._report(config)]


def test_it_is_started_and_ends_before_what_keeps_its_last_report(tmp_path: Path) -> None:
    (spec,) = [s for s in run_processes(launched(), StackFolder(tmp_path)) if s.name == "reporting"]
    assert spec.stage == DERIVING < SHOWING
    assert spec.target == "infra.stack.entries:reporting" and not spec.heavy


def test_a_run_that_reports_nothing_has_no_such_process(tmp_path: Path) -> None:
    launch = launched("report.enabled=false", metrics_url="")
    assert "reporting" not in {s.name for s in run_processes(launch, StackFolder(tmp_path))}
    assert wiring.loss(launch.settings).measure_entropy is False


def test_what_it_is_told(tmp_path: Path) -> None:
    launch = launched()
    settings = wiring.reporting(launch, StackFolder(tmp_path))
    assert (settings.host, settings.port, settings.board) == ("127.0.0.1", 4321, tmp_path / "tensorboard" / "r")
    assert settings.wandb is None and settings.config_hash == launch.config_hash
    assert wiring.loss(launch.settings).measure_entropy is True


def test_what_it_is_told_of_weights_and_biases_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret")
    given = (
        "report.wandb=p",
        "report.wandb_mode=offline",
        "report.tensorboard=false",
        "kafka.librdkafka={'sasl.password' = 'hunter2'}",
    )
    settings = wiring.reporting(launched(*given), StackFolder(tmp_path))
    assert settings.board is None and settings.wandb is not None
    assert (settings.wandb.project, settings.wandb.mode, settings.wandb.folder) == ("p", "offline", tmp_path / "wandb")
    shown = json.dumps(dict(settings.wandb.config))
    assert "very-secret" not in shown and "hunter2" not in shown


def test_a_launch_that_an_earlier_version_saved_still_loads(tmp_path: Path) -> None:
    folder, fields = StackFolder(tmp_path), asdict(launched())
    del fields["metrics_url"]
    folder.launch.write_text(json.dumps(fields))
    assert Launch.load(folder).metrics_url == ""


def test_weights_and_biases_without_its_library_or_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    config = with_overrides(Config(), ["report.wandb=p"])
    assert told(config) == [
        "report.wandb is set, and wandb is not installed: `uv sync --extra wandb`",
        'report.wandb: the environment has no WANDB_API_KEY: export it there first, or set report.wandb_mode = "offline"',
    ]
    monkeypatch.setattr(checks, "find_spec", importlib.util.find_spec)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    there = importlib.util.find_spec("wandb") is not None
    assert len(told(config)) == (0 if there else 1)
    assert told(with_overrides(config, ["report.enabled=false"])) == []


def test_a_port_that_somebody_has() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        (text,) = told(with_overrides(Config(), [f"report.port={port}"]))
    assert text == f"report.port: 127.0.0.1:{port} cannot be bound: give a free port, or 0 for any"


def test_a_mode_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"report\.wandb_mode must be one of online, offline; got 'onlin'.*online"):
        with_overrides(Config(), ["report.wandb_mode=onlin"])
