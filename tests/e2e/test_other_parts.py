"""The same run with other parts: a Kafka that is not ours, two stacks side by side, real SGLang, mini-swe-agent."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from infra.broker.broker import Broker, BrokerSettings
from infra.sglang.launch import PYTHON as SGLANG
from tests.e2e.small_run import Gyre, settings, write_experiment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_two_stacks_side_by_side_on_one_foreign_kafka(tmp_path: Path) -> None:
    with Broker(BrokerSettings(tmp_path / "kafka")) as broker:
        shared = (f"kafka.bootstrap_servers='{broker.bootstrap_servers}'", "kafka.allow_weak=true", "cells.count=2")
        programs = []
        for name in ("left", "right"):
            folder = tmp_path / name
            folder.mkdir()
            programs.append((Gyre(folder), settings(*shared, f"run.name='{name}'"), write_experiment(folder)))
        running = [p.start("run", str(experiment), *given) for p, given, experiment in programs]
        outputs = [process.communicate(timeout=600)[0] for process in running]
        assert [process.returncode for process in running] == [0, 0], "\n".join(outputs)
        for program, _, _ in programs:
            assert "2 steps verified" in program("replay", "latest", "--verify")
        names = programs[0][0]("runs")
        assert "left-" in names
        assert "right-" in names


def test_a_foreign_kafka_with_one_replica_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with Broker(BrokerSettings(tmp_path / "kafka")) as broker:
        program = Gyre(tmp_path)
        process = program.start(
            "run", str(write_experiment(tmp_path)), *settings(f"kafka.bootstrap_servers='{broker.bootstrap_servers}'")
        )
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "cannot hold 3 replicas" in output


@pytest.mark.skipif(not SGLANG.exists(), reason="SGLang's own environment is not installed: make install-sglang")
def test_real_sglang_samples_and_what_it_sampled_is_trained_and_replayed(tmp_path: Path) -> None:
    program = Gyre(tmp_path)
    given = settings("cells.engine='sglang'", "cells.count=1", "cells.capacity=16", "cells.kv_tokens=16384", "batch.phi=0")
    program("run", str(write_experiment(tmp_path)), *given, limit=800)
    started = [e for e in program.tail("cells") if e["type"] == "cell-started"]
    assert {e["engine"] for e in started} == {"sglang"}
    gaps = [e for e in program.tail("cells") if e["type"] == "probe-gap"]
    assert gaps
    assert max(g["gap_max"] for g in gaps) <= 1e-4  # type: ignore[type-var]
    assert "2 steps verified" in program("replay", "latest", "--verify")
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert [line for line in lines if "sglang::" in line or "sglang.launch_server" in line] == []


@pytest.mark.skipif(not SGLANG.exists(), reason="SGLang's own environment is not installed: make install-sglang")
def test_two_real_sglang_servers_and_megatron_replicas_change_roles_in_a_live_loop(tmp_path: Path) -> None:
    """Two cells, each real SGLang and a Megatron replica: the scheduler switches them, versions are loaded, nothing is lost."""
    program = Gyre(tmp_path)
    given = settings("cells.engine='sglang'", "cells.count=2", "cells.capacity=16", "cells.kv_tokens=16384", "run.steps=3")
    program("run", str(write_experiment(tmp_path)), *given, limit=800)
    cells = program.tail("cells")
    switched = {(e["cell"], e["role"]) for e in cells if e["type"] == "role-changed"}
    assert {("cell-0", "training"), ("cell-0", "sampling")} <= switched
    # Not which versions: a core that stays in training over two bursts loads the second's alone.
    assert {e["cell"] for e in cells if e["type"] == "weights-loaded"} == {"cell-0", "cell-1"}
    assert max(e["gap_max"] for e in cells if e["type"] == "probe-gap") <= 1e-4  # type: ignore[type-var]
    calls = program.tail("model-calls")
    assert sum(int(str(e["errors"])) for e in calls if e["type"] == "execution-closed") == 0
    for call in (e for e in calls if e["type"] == "model-call"):
        spans = call["weight_spans"]
        assert isinstance(spans, list) and [span["start"] for span in spans] == sorted({span["start"] for span in spans})
        assert len(call["logprobs"]) == len(call["output_ids"])  # type: ignore[arg-type]
    assert "3 steps verified" in program("replay", "latest", "--verify")


def test_mini_swe_agent_runs_against_the_proxy(tmp_path: Path) -> None:
    program = Gyre(tmp_path)
    given = settings(
        "harness.name='mini-swe-agent'", "harness.max_turns=2", "model.context=8192", "run.steps=1", "batch.groups=1",
        "batch.group_size=2", "batch.phi=0", "runner.max_concurrent=2", "cells.count=1",
    )  # fmt: skip
    program("run", str(write_experiment(tmp_path)), *given, limit=600)
    endings = [e["ending"] for e in program.tail("executions") if e["type"] == "finished"]
    assert len(endings) == 2
    assert set(endings) <= {"completed", "turn-budget", "context-limit"}
    calls = [e for e in program.tail("model-calls") if e["type"] == "model-call"]
    assert len(calls) >= 2
