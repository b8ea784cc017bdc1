"""What the config says reaches the process that needs it."""

from pathlib import Path

from gyre_engine.config import Config, to_json, with_overrides
from gyre_engine.config.limits import _ONE_OF
from gyre_engine.tasks import FILTERS
from infra.stack import wiring
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder


def launched(*given: str) -> Launch:
    return Launch(
        run="r", config=to_json(with_overrides(Config(), given)), bootstrap_servers="127.0.0.1:1", prefix="gyre", partitions=4,
        replication=1, proxy_url="http://127.0.0.1:2", engine_urls=("http://127.0.0.1:3",), clickhouse_url="",
    )  # fmt: skip


def test_the_runner_is_told_the_filter_of_tasks(tmp_path: Path) -> None:
    told = wiring.runner(launched("runner.task_filter=pass-rate"), StackFolder(tmp_path))
    assert told.task_filter == "pass-rate"


def test_the_config_takes_the_filters_that_there_are() -> None:
    assert set(_ONE_OF["runner.task_filter"]) == set(FILTERS)


def test_the_core_is_told_how_many_checkpoints_to_keep(tmp_path: Path) -> None:
    told = wiring.trainer(launched("run.checkpoint_keep=3"), StackFolder(tmp_path), 0, "me")
    assert (told.core, told.checkpoint_keep) == (True, 3)
