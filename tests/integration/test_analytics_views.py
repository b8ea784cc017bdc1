"""The views on a small run whose answers are worked out by hand."""

import re
from dataclasses import replace
from pathlib import Path

import clickhouse_connect
import pytest

from consumers.analytics.ingest import Ingest
from consumers.analytics.process import serving
from consumers.analytics.schema import tables
from consumers.analytics.settings import AnalyticsSettings
from consumers.analytics.store import Store
from consumers.analytics.views import VIEWS
from gyre_engine.events.calls import Role, TreeClosed, TreeNode
from gyre_engine.events.cells import CellRole, CellStarted, ProbeGap, RoleChanged, WaterLevelChanged
from gyre_engine.events.executions import Discarded, DiscardReason, Ending, Finished, Scored, Started
from gyre_engine.events.log import RunStarted
from gyre_engine.events.reports import DriftAt, MemberTime, StepReported
from gyre_engine.events.training import Sealed, StepCommitted, StepOpened
from gyre_engine.log.memory import MemoryLog

SECOND = 1_000_000
BEGIN = 1_700_000_000 * SECOND
"""2023-11-14 22:13:20 UTC"""


def at(seconds: float) -> int:
    return BEGIN + int(seconds * SECOND)


def cell_started(cell, position, role):
    return CellStarted(
        cell=cell, position=position, incarnation="i", engine="native", engine_url="", capacity=4, role=role, weight_version=0
    )


def role_changed(cell, role, number, took=0.0):
    return RoleChanged(cell=cell, incarnation="i", role=role, command_epoch=1, command_number=number, took_us=int(took * SECOND))


def two_cells(log):
    """cell-0 samples 0-10 s, switches 10-12 s, trains 12-30 s; cell-1 samples throughout; the run is seen until 40 s.

    cell-0: 10 sampling, 2 switching, 28 training (until the end). Both at once: 12-40 = 28 s; only sampling: 0-12 = 12 s.
    """
    log.append(cell_started("cell-0", 0, CellRole.SAMPLING), at=at(0))
    log.append(cell_started("cell-1", 1, CellRole.SAMPLING), at=at(0))
    log.append(role_changed("cell-0", CellRole.TRAINING, 1, took=2), at=at(12))
    log.append(
        WaterLevelChanged(
            dispatched=4,
            started=3,
            terminated=1,
            level=3,
            capacity_per_cell=4,
            sampling_capacity=4,
            sampling_cells=("cell-1",),
            training_cells=("cell-0",),
            switching_cells=(),
            ready_groups=1,
            committed_step=1,
        ),
        at=at(40),
    )
    log.append(ProbeGap(cell="cell-1", version=1, tokens=64, gap_max=2e-6, gap_mean=1e-7), at=at(35))


METRICS = {
    "targets": 400.0,
    "drift_0_tokens": 300.0, "drift_0_ratio_mean": 1.0, "drift_0_ratio_max": 1.5, "drift_0_gap_mean": 0.01,
    "drift_1_tokens": 100.0, "drift_1_ratio_mean": 0.9, "drift_1_ratio_max": 3.0, "drift_1_gap_mean": 0.2, "drift_2_tokens": 4.0,
}  # fmt: skip
"""At staleness 2 nothing but the count was a number."""


def sealed(cell, tokens, micro_steps):
    return Sealed(
        cell=cell, member_epoch=1, step=1, attempt=1, micro_steps=micro_steps, buffer_hash="b", descriptor=b"", tokens=tokens,
        packed_tokens=2 * tokens, took_us=SECOND,
    )  # fmt: skip


def one_step(log):
    """Step 1 opens at 12 s and commits at 15.5 s: 3.5 s; two members, 300 + 100 tokens."""
    opened = StepOpened(
        core_epoch=1, step=1, attempt=1, weights_hash="h0", groups=("g0", "g1"), scores=("s",), micro_steps=("m0", "m1", "m2"),
        executions=8, divisor=1, staleness_max=1, staleness_mean=0.25,
    )  # fmt: skip
    committed = StepCommitted(
        core_epoch=1, step=1, attempt=1, merge_order=(("cell-0", 1), ("cell-1", 1)), weights_hash="h1", executions=8,
        grad_norm=0.5, loss=float("nan"), reward_mean=0.375, metrics=METRICS,
    )  # fmt: skip
    log.append(replace(opened, attempt=0, groups=("g9",)), at=at(11))  # void: its core died
    log.append(opened, at=at(12))
    log.append(sealed("cell-0", 300, ("m0", "m2")), at=at(15))
    log.append(sealed("cell-1", 100, ("m1",)), at=at(15))
    log.append(committed, at=at(15.5))
    log.append(a_report(), id="first", at=at(15.5))
    log.append(replace(a_report(), sampled_tokens=9), id="second", at=at(15.5))  # a rival's: the first of a step counts


def a_report():
    """Of that step: 500 tokens sampled, 490 delivered, 900 of paths over 800 packed."""
    return StepReported(
        step=1, attempt=1, core_epoch=1, opened_at=at(12), committed_at=at(15.5), seconds=3.5, skipped=False, loss=float("nan"),
        policy_loss=0.5, kl_loss=0.0, entropy_loss=0.0, grad_norm=0.5, lr=1e-4, entropy=1.5, kl=0.01, reference_kl=None,
        clip_fraction=0.2, ratio_max=12.0, ratio_tails={"above_2": 0.02}, ratio_tail_tokens={"above_2": 8},
        drift=(DriftAt(0, 300, 1.0, 1.5, 0.01),), gap_version=None, gap_max=None, gap_mean=None, gap_cells=0, trained_tokens=400,
        packed_tokens=800, sampled_tokens=500, delivered_tokens=490, delivered=0.98, trained=0.8, path_tokens=900,
        dedup_ratio=1.125, step_groups=2, decided_groups=3, zero_variance_groups=1, untrained_groups={"zero-variance": 1},
        trained_executions=8, scored_executions=9, discarded_executions=2, failed_executions=1,
        left_out_executions={"discarded": 2, "evaluation-failed": 1}, reward_mean=0.375, reward_deviation=0.25, reward_min=0.0,
        reward_max=1.0, staleness_max=1, staleness_mean=0.25, data_s=7.0,
        members=(MemberTime("cell-0", 1, 2, 300, 2.0, 1.0, 0.625, 0.25), MemberTime("cell-1", 1, 1, 100, 1.0, 0.5, 0.125, 0.75)),
        released_members=0, resume={"trees/0": 1},
    )  # fmt: skip


def twenty_executions(log):
    """Wall times 1 ... 20 s; the last two are discarded: tenths of two, all of the longest lost, none of the others."""
    for n in range(1, 21):
        name = f"g.{n}.0"
        log.append(Started(execution=name), at=at(0))
        if n > 18:
            event = Discarded(execution=name, reason=DiscardReason.OVERALL_TIMEOUT, final=True, wall_us=n * SECOND)
        else:
            event = Finished(
                execution=name,
                ending=Ending.COMPLETED,
                work_url="",
                work_hash="",
                did_work=True,
                served_us=n * SECOND - 500_000,
                wall_us=n * SECOND,
            )
        log.append(event, at=at(n))
    log.append(Scored(execution="g.1.0", scorer="s", scorer_version="1", evaluation_attempt=0, reward=0.75), at=at(3))


def one_tree(log):
    """a - b - c and a - d: three calls deep, one branch: leaves c (main) and d (sub-agent), one root."""

    def node(name, parent, role):
        return TreeNode(name, parent, 10, 5, 4, True, role, 0)

    nodes = (node("a", None, Role.MAIN), node("b", "a", Role.MAIN), node("c", "b", Role.MAIN), node("d", "a", Role.SUB_AGENT))
    log.append(TreeClosed(execution="g.1.0", nodes=nodes, sampled_tokens=16, tree_tokens=16, delivered=1.0), at=at(2))


def late_trees(log):
    """Of the step's groups: 300 tokens, all delivered; 200 of a discarded attempt whose tree closed last, 160 in it. g9 is none."""
    for execution, sampled, kept in (("g0.0.0", 300, 300), ("g9.0.0", 1000, 1000), ("g1.3.1", 200, 160)):
        log.append(
            TreeClosed(execution=execution, nodes=(), sampled_tokens=sampled, tree_tokens=kept, delivered=kept / sampled),
            at=at(16),
        )


def started(run):
    return RunStarted(
        run=run,
        config="{}",
        config_hash="c",
        versions={},
        partitions={},
        fingerprint={},
        initial_weights="",
        initial_weights_hash="",
        topic_prefix="gyre",
    )


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    log = MemoryLog(run="r1")
    log.append(started("r1"), at=at(0))
    two_cells(log)
    one_step(log)
    twenty_executions(log)
    one_tree(log)
    late_trees(log)
    settings = AnalyticsSettings(path=tmp_path_factory.mktemp("views") / "data", port=0, password="p")
    with serving(settings) as address:
        store = Store(address)
        store.prepare()
        ingest = Ingest(log, store, settings)
        ingest.run_to_end()
        client = clickhouse_connect.get_client(host=address.host, port=address.port)
        yield lambda sql: client.query(sql, parameters={"latest": "r1"} if "{latest:" in sql else None).result_rows
        client.close()
        store.close()


@pytest.mark.parametrize("view", [view.name for view in VIEWS])
def test_every_view_runs(ask, view):
    ask(f"SELECT * FROM {view}")


def test_docs_list_every_view_and_every_table():
    text = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    assert set(re.findall(r"^### `(\w+)`", text, re.MULTILINE)) == {view.name for view in VIEWS}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == {table.name for table in tables().values()}


def test_every_example_in_the_docs_runs(ask):
    text = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    examples = re.findall(r'gyre sql "([^"]+)"', text)
    assert len(examples) >= len(VIEWS)
    for sql in examples:
        ask(sql.replace("\\", ""))


def test_reward_by_step(ask):
    assert ask("SELECT step, reward_mean, grad_norm, isNaN(loss), trained_tokens FROM reward_by_step") == [
        (1, 0.375, 0.5, True, 400.0)
    ]


def test_steps_and_work_by_cell(ask):
    assert ask("SELECT step, seconds, groups, micro_steps, cells, published_at FROM steps") == [
        (1, 3.5, 2, 3, ["cell-0", "cell-1"], None)
    ]
    assert ask("SELECT cell, micro_steps, trained_tokens, seconds FROM work_by_cell") == [
        ("cell-0", 2, 300, 1.0),
        ("cell-1", 1, 100, 1.0),
    ]


def test_what_a_step_came_to(ask):
    names = (
        "policy_loss, lr, skipped, entropy, reference_kl, ratio_tails['above_2'], gap_max, sampled_tokens, delivered_fraction, "
        "dedup_ratio, zero_variance_groups, scored_executions, discarded_executions, failed_executions"
    )
    assert ask(f"SELECT {names} FROM steps") == [(0.5, 1e-4, False, 1.5, None, 0.02, None, 500, 0.98, 1.125, 1, 9, 2, 1)]
    assert ask("SELECT cell, micro_steps, compute_s, wait_s, merge_s, publish_s FROM member_times") == [
        ("cell-0", 2, 2.0, 1.0, 0.625, 0.25),
        ("cell-1", 1, 1.0, 0.5, 0.125, 0.75),
    ]


def test_role_timeline_and_utilisation(ask):
    assert ask("SELECT cell, role, seconds FROM role_timeline") == [
        ("cell-0", "sampling", 10.0),
        ("cell-0", "switching", 2.0),
        ("cell-0", "training", 28.0),
        ("cell-1", "sampling", 40.0),
    ]
    assert ask("SELECT cell, role, share FROM utilisation") == [
        ("cell-0", "sampling", 0.25),
        ("cell-0", "switching", 0.05),
        ("cell-0", "training", 0.7),
        ("cell-1", "sampling", 1.0),
    ]


def test_sampling_and_training_at_once(ask):
    assert ask("SELECT both, only_sampling, only_training, neither, overlap FROM sampling_training_overlap") == [
        (28.0, 12.0, 0.0, 0.0, 0.7)
    ]


def test_drift_is_split_by_staleness(ask):
    assert ask("SELECT staleness, tokens, ratio_mean, ratio_max, log_ratio_mean FROM drift") == [
        (0, 300.0, 1.0, 1.5, 0.01),
        (1, 100.0, 0.9, 3.0, 0.2),
        (2, 4.0, None, None, None),
    ]


def test_gap_and_staleness(ask):
    assert ask("SELECT cell, weight_version, gap_max, kept_tokens FROM gap") == [("cell-1", 1, 2e-6, 0)]
    assert ask("SELECT step, staleness_max, staleness_mean FROM staleness WHERE attempt = 1") == [(1, 1, 0.25)]


def test_water_level_timeline(ask):
    assert ask("SELECT level, sampling, training, switching FROM water_level_timeline") == [(3, 1, 1, 0)]


def test_branches(ask):
    found = ask("SELECT calls, roots, leaves, main, sub_agent, delivered FROM branches_per_execution WHERE execution = 'g.1.0'")
    assert found == [(4, 1, 2, 1, 1, 1.0)]


def test_what_a_step_sampled_is_over_all_trees_of_its_groups_however_late_they_close(ask):
    """460 of 500 delivered, 400 of 500 trained. An attempt of the same step that was void has no row."""
    found = ask(
        "SELECT step, executions, sampled_tokens, delivered_tokens, delivered_fraction, trained_fraction FROM sampled_by_step"
    )
    assert found == [(1, 2, 500, 460, 0.92, 0.8)]


def test_discards_by_duration(ask):
    found = ask("SELECT tenth, executions, discarded, longest, reasons FROM discards_by_duration")
    assert [row[:3] for row in found] == [(n, 2, 2 if n == 10 else 0) for n in range(1, 11)]
    assert found[-1][3:] == (20.0, ["overall-timeout"])


def test_the_longest_tenth_that_loses_more_is_an_alert(ask):
    assert ask("SELECT run, longest, longest_lost, rest, rest_lost, alert FROM long_executions_lost") == [
        ("r1", 2, 2, 18, 0, True)
    ]


def test_tokens_per_second_counts_what_was_sealed(ask):
    assert ask("SELECT toUnixTimestamp(window), trained FROM tokens_per_second WHERE trained > 0") == [(1_700_000_010, 40.0)]


def test_executions_overview(ask):
    found = ask(
        "SELECT execution, ending, served, wall, reward FROM executions_overview WHERE execution IN ('g.1.0', 'g.20.0') ORDER BY 1"
    )
    assert found == [("g.1.0", "completed", 0.5, 1.0, 0.75), ("g.20.0", "discarded: overall-timeout", None, 20.0, None)]


def test_latest_run(ask):
    assert ask("SELECT run FROM latest_run") == [("r1",)]


def test_event_to_row_counts_every_table(ask):
    assert dict(ask("SELECT table, rows FROM event_to_row WHERE table IN ('executions', 'runs')")) == {
        "executions": 40,
        "runs": 1,
    }
