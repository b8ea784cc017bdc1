"""What the config says reaches the process that needs it."""

from pathlib import Path

from gyre_engine.config import Config, to_json, with_overrides
from gyre_engine.config.limits import _ONE_OF
from gyre_engine.tasks import FILTERS
from gyre_engine.training.replica import ReplicaOptions
from infra.stack import wiring
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.stack.processes import run_processes


def launched(*given: str) -> Launch:
    config = with_overrides(Config(), given)
    ports = range(7, 7 + len(wiring.positions(config)))
    return Launch(
        run="r", config=to_json(config), bootstrap_servers="127.0.0.1:1", prefix="gyre", partitions=4, replication=1,
        proxy_url="http://127.0.0.1:2", cells=wiring.places(config, "127.0.0.1", ports), clickhouse_url="",
    )  # fmt: skip


def test_the_runner_is_told_the_filter_of_tasks(tmp_path: Path) -> None:
    told = wiring.runner(launched("runner.task_filter=pass-rate"), StackFolder(tmp_path))
    assert told.task_filter == "pass-rate"


def test_the_config_takes_the_filters_that_there_are() -> None:
    assert set(_ONE_OF["runner.task_filter"]) == set(FILTERS)


def test_the_core_is_told_how_many_checkpoints_to_keep(tmp_path: Path) -> None:
    told = wiring.trainer(launched("run.checkpoint_keep=3"), StackFolder(tmp_path), "cell-0", "me")
    assert (told.core, told.checkpoint_keep) == (True, 3)


def test_the_scheduler_is_told_its_policy_and_all_cells(tmp_path: Path) -> None:
    given = ("schedule.policy=async", "schedule.training_cells=2", "cells.standalone=2", "cells.count=3")
    told = wiring.scheduler(launched(*given), "me")
    assert (told.policy, told.options.training_cells) == ("async", 2)
    assert told.cells == ("cell-0", "cell-1", "cell-2", "standalone-0", "standalone-1")


def test_the_standalone_pool_has_engines_and_agents_but_no_trainers(tmp_path: Path) -> None:
    urls = tuple(f"http://127.0.0.1:{port}" for port in (7, 8, 9))
    launch = launched("cells.standalone=2", "cells.count=1")
    names = {spec.name for spec in run_processes(launch, StackFolder(tmp_path)) if "-" in spec.name}
    assert names == {
        "cell-0-engine", "cell-0-trainer", "cell-0-agent", "standalone-0-engine", "standalone-0-agent", "standalone-1-engine",
        "standalone-1-agent",
    }  # fmt: skip
    cells = ("cell-0", "standalone-0", "standalone-1")
    agents = [wiring.agent(launch, StackFolder(tmp_path), cell, "i") for cell in cells]
    assert [(a.cell, a.position, a.engine_url) for a in agents] == [
        ("cell-0", 0, urls[0]), ("standalone-0", -1, urls[1]), ("standalone-1", -2, urls[2]),
    ]  # fmt: skip


def test_trainers_and_agents_are_told_the_transfer_and_agents_the_tree(tmp_path: Path) -> None:
    given = ("transfer.kind=verbs", "publish.fanout=2", "publish.patience_s=3", "cells.count=2", "cells.standalone=1")
    launch = launched(*given)
    agent = wiring.agent(launch, StackFolder(tmp_path), "standalone-0", "i")
    assert (agent.transfer, agent.fanout, agent.patience_s) == ("verbs", 2, 3.0)
    assert agent.order == ("cell-0", "cell-1", "standalone-0")
    assert wiring.trainer(launch, StackFolder(tmp_path), "cell-1", "me").transfer == "verbs"


def test_the_scheduler_moves_no_kv_of_engines_that_have_none_to_give(tmp_path: Path) -> None:
    given = {"native": "auto", "sglang": "never", "scripted": "never"}
    for engine, kv in given.items():
        assert wiring.scheduler(launched(f"cells.engine='{engine}'", "cells.script='answers.toml'"), "me").kv == kv
    assert wiring.scheduler(launched("cells.engine='sglang'", "cells.engine_kv='hicache'"), "me").kv == "auto"


def test_the_core_and_a_replay_of_its_run_pack_alike(tmp_path: Path) -> None:
    """Trees, or separate paths where the config says so or a layer cannot be masked."""
    for layers, choice, trees in (("full", "auto", True), ("full", "paths", False), ("linear", "auto", False)):
        (tmp_path / "config.json").write_text(f'{{"layer_types": ["{layers}_attention"]}}')
        launch = launched(f"batch.trees={choice}", f"model.path={tmp_path}")
        core = wiring.trainer(launch, StackFolder(tmp_path), "cell-0", "me")
        assert core.packing.trees is trees
        assert wiring.replay(launch.settings, launch.config_hash).packing == core.packing


def test_trainers_and_a_replay_are_told_the_same_schedule_and_dtype(tmp_path: Path) -> None:
    """What is left out is filled in once: down at the last step, wsd over the last tenth."""
    launch = launched("run.steps=40", "optimizer.schedule=wsd", "optimizer.nonfinite=skip", "training.dtype=bfloat16")
    told = wiring.trainer(launch, StackFolder(tmp_path), "cell-0", "me")
    again = wiring.replay(launch.settings, "pinned")
    assert (told.hyper.decay_steps, told.hyper.wsd_steps, told.hyper.nonfinite, told.options.dtype) == (40, 4, "skip", "bfloat16")
    assert (again.hyper, again.options) == (told.hyper, told.options)
    launch = launched("training.recompute=true", "training.device=cuda", "sampling.temperature=0.7")
    given = wiring.trainer(launch, StackFolder(tmp_path), "cell-0", "me").options
    assert given == wiring.replay(launch.settings, "pinned").options
    assert given == ReplicaOptions(temperature=0.7, device="cuda", recompute=True)
    own = wiring.hyper(launched("optimizer.decay_steps=7", "optimizer.wsd_steps=2").settings)
    assert (own.decay_steps, own.wsd_steps) == (7, 2)
