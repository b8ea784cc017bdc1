"""`gyre sql` where a stack runs and its ClickHouse does not answer: what is said fits how the stack stands."""

import os

import pytest

from infra.cli.asking import ask
from infra.cli.errors import CommandError
from infra.stack.layout import StackFolder
from infra.supervisor.children import start_ticks
from infra.supervisor.spec import ProcessStatus, State
from infra.supervisor.state import write_state

NOBODY = "http://127.0.0.1:1"
ALIVE = {"pid": os.getpid(), "start": start_ticks(os.getpid())}


@pytest.fixture
def folder(tmp_path):
    return StackFolder(tmp_path)


def stack(folder, facts, *processes):
    """A stack of this very process."""
    write_state(folder.root, facts, [ProcessStatus("preloader", State.RUNNING, **ALIVE), *processes])


def refusal(folder, capsys):
    assert ask(folder, "select 1", None) == 1
    return capsys.readouterr().err


def test_a_stack_whose_clickhouse_comes_up_is_said_to_be_starting(folder, capsys):
    stack(folder, {"run": "r", "clickhouse_url": NOBODY}, ProcessStatus("analytics", State.RUNNING, **ALIVE))
    assert refusal(folder, capsys) == (
        f"gyre: the stack in {folder.root} is still starting, and its ClickHouse does not answer yet: try again in a moment\n"
    )


def test_a_stack_that_has_no_address_yet_is_said_to_be_starting_and_its_folder_is_left_alone(folder):
    folder.clickhouse.mkdir()
    stack(folder, {})
    with pytest.raises(CommandError, match="is still starting, .*: try again in a moment"):
        ask(folder, "select 1", None)
    assert list(folder.clickhouse.iterdir()) == []


@pytest.mark.parametrize(
    ("state", "said"), [(State.WAITING, "starts again: try again in a moment"), (State.FAILED, "was given up")]
)
def test_a_process_that_keeps_ending_is_named_with_its_log(folder, capsys, state, said):
    alive = {} if state is State.FAILED else ALIVE
    stack(
        folder,
        {"run": "r", "clickhouse_url": NOBODY},
        ProcessStatus("analytics", state, **alive, last_exit="ended with status 1"),
    )
    said_all = refusal(folder, capsys)
    assert (
        f"analytics, which serves ClickHouse, ended with status 1 and {said}; its log is {folder.logs}/analytics.log" in said_all
    )


def test_a_server_of_ones_own_that_does_not_answer_is_not_taken_for_a_start(folder, capsys):
    folder.keep_private({"clickhouse.url": "http://me:pw@127.0.0.1:1"})
    stack(folder, {"run": "r", "clickhouse_url": NOBODY}, ProcessStatus("analytics", State.RUNNING, **ALIVE))
    assert refusal(folder, capsys).startswith("gyre: no ClickHouse answers at 127.0.0.1:1")


def test_a_folder_without_data_says_what_makes_some(folder):
    with pytest.raises(CommandError, match="holds no ClickHouse data: run an experiment"):
        ask(folder, "select 1", None)
