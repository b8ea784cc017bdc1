"""The three derivations on records as they stand: outputs, ids, and what happens to records that cannot be read."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gyre_engine.admission import AdmissionSettings
from gyre_engine.events import CodecError, Event, Recorded, encode
from gyre_engine.events.calls import (
    Continuity,
    ExecutionClosed,
    Finish,
    ModelCall,
    NodeGrown,
    Quarantined,
    TreeClosed,
    WeightSpan,
)
from gyre_engine.events.cells import CellRole, CellStarted, WaterLevelChanged
from gyre_engine.events.log import DeadLetter
from gyre_engine.log.port import Raw, UnreadableEvent
from gyre_engine.log.settings import KafkaSettings
from streams.admission import AdmissionStream
from streams.settings import StreamsSettings
from streams.trajectory_trees import TrajectoryTrees
from streams.watchdog import Progress
from streams.water_level import WaterLevelStream

SETTINGS = AdmissionSettings("verifier", "1", config_hash="abc")


def raw(event: Event, offset: int = 0, id: str = "cause") -> Raw:
    value = encode(Recorded(id, "run", 70_000, None, event))
    return Raw(event.TOPIC, 0, offset, event.key("run").encode(), value, 70)


def call(number: int, parent: str | None = None, cut: int = 0) -> ModelCall:
    return ModelCall(
        execution="g.0.0",
        call=f"c{number}",
        number=number,
        owner_epoch=1,
        parent=parent,
        prefix_len=cut,
        prefix_hash=b"",
        new_input_ids=np.arange(3, dtype=np.int32),
        output_ids=np.arange(2, dtype=np.int32),
        logprobs=np.zeros(2, np.float32),
        weight_spans=(WeightSpan(0, 1, "a"),),
        input_spans=(),
        finish=Finish.STOP,
        continuity=Continuity.ROOT,
        dialect="chat",
        temperature=1.0,
        top_p=1.0,
        max_tokens=8,
        tools=1,
        messages=2,
        shape="s",
    )


def test_a_call_becomes_a_node_and_a_closing_the_tree_both_with_ids_of_their_cause() -> None:
    first, again = TrajectoryTrees("abc"), TrajectoryTrees("abc")
    (node,) = first.observe(raw(call(0)))
    assert isinstance(node.event, NodeGrown) and (node.cause, node.at) == ("cause", 70_000)
    assert again.observe(raw(call(0))) == (node,)
    (other,) = TrajectoryTrees("other config").observe(raw(call(0)))
    assert other.id != node.id
    (tree,) = first.observe(raw(ExecutionClosed(execution="g.0.0", owner_epoch=1, calls=1, last_call="c0"), 1, "end"))
    assert isinstance(tree.event, TreeClosed) and tree.cause == "end"


@pytest.mark.parametrize("value", [b'{"v":', None, b"", b"\x80"])
def test_c39_a_record_that_cannot_be_read_is_a_dead_letter_and_quarantines_its_execution(value: bytes | None) -> None:
    """C39: whatever the bytes are."""
    trees = TrajectoryTrees()
    bad = Raw("model-calls", 2, 9, b"g.0.0", value, 70)
    with pytest.raises(CodecError) as error:
        trees.observe(bad)
    letter, quarantined = trees.reject(bad, str(error.value))
    assert isinstance(letter.event, DeadLetter)
    assert (letter.event.topic, letter.event.partition, letter.event.offset) == ("model-calls", 2, 9)
    assert letter.event.message_key == b"g.0.0" and letter.event.value == (value or b"") and letter.event.reason
    assert quarantined.event == Quarantined(execution="g.0.0", reason=letter.event.reason)
    assert trees.observe(raw(call(0))) == ()


def test_a_bad_record_without_a_key_quarantines_nobody() -> None:
    assert len(TrajectoryTrees().reject(Raw("model-calls", 0, 0, None, b"x", 0), "no event")) == 1


def test_a_call_without_its_parent_is_a_dead_letter_and_a_quarantine() -> None:
    letter, quarantined = TrajectoryTrees().observe(raw(call(1, "gone", 5)))
    assert isinstance(letter.event, DeadLetter) and isinstance(quarantined.event, Quarantined)
    assert "gone" in letter.event.reason


def test_admission_quarantines_the_execution_of_a_bad_record_on_trees() -> None:
    stream = AdmissionStream(SETTINGS)
    _, quarantined = stream.reject(Raw("scores", 1, 4, b"g.0.0", b"x", 70), "not msgpack")
    assert quarantined.event == Quarantined(execution="g.0.0", reason="scores: not msgpack")
    assert quarantined.event.TOPIC == "trees"


def test_admission_reads_past_nodes_but_not_past_types_it_does_not_know() -> None:
    stream = AdmissionStream(SETTINGS)
    (node,) = TrajectoryTrees().observe(raw(call(0)))
    assert stream.observe(raw(node.event)) == ()
    unknown = raw(node.event).value
    assert unknown is not None
    with pytest.raises(CodecError, match="unknown event type 'node-grewn'"):
        stream.observe(Raw("trees", 0, 0, b"k", unknown.replace(b"node-grown", b"node-grewn"), 0))


def cell_started(role: CellRole) -> CellStarted:
    return CellStarted(
        cell="a", position=0, incarnation="1", engine="native", engine_url="u", capacity=4, role=role, weight_version=0
    )


def test_the_water_level_speaks_only_when_it_changes_and_names_its_positions() -> None:
    stream = WaterLevelStream()
    (first,) = stream.observe(raw(cell_started(CellRole.SAMPLING), 0))
    assert isinstance(first.event, WaterLevelChanged) and first.event.sampling_capacity == 4
    assert stream.observe(raw(cell_started(CellRole.SAMPLING), 1)) == ()
    (second,) = stream.observe(raw(cell_started(CellRole.TRAINING), 2))
    assert second.id != first.id


def test_an_unreadable_ledger_stops_the_water_level() -> None:
    with pytest.raises(UnreadableEvent, match=r"training, partition 0, offset 3: odd\. water-level stops here"):
        WaterLevelStream().reject(Raw("training", 0, 3, b"run", b"x", 0), "odd")
    assert WaterLevelStream().reject(Raw("executions", 0, 3, b"g.0.0", b"x", 0), "admission reports it") == ()


def test_the_watchdog_speaks_after_a_lag_has_stood_for_longer_than_the_limit() -> None:
    seen = Progress(60.0)
    assert seen.look(applied=5, ends=9, now=0.0) is None
    assert seen.look(applied=5, ends=9, now=60.0) is None
    assert seen.look(applied=5, ends=12, now=61.0) == 61.0
    assert seen.look(applied=6, ends=12, now=62.0) is None
    assert seen.look(applied=12, ends=12, now=500.0) is None
    assert seen.look(applied=12, ends=13, now=501.0) is None


def test_groups_are_named_per_run_and_by_what_they_run() -> None:
    kafka = KafkaSettings("127.0.0.1:1", prefix="p")
    assert StreamsSettings(kafka, "r", SETTINGS).app_id == "p.r.streams"
    assert StreamsSettings(kafka, "r", SETTINGS, ("trajectory-trees",)).app_id == "p.r.streams-trajectory-trees"
    with pytest.raises(ValueError, match=r"names \['tree'\]; there are: trajectory-trees, admission, water-level"):
        StreamsSettings(kafka, "r", SETTINGS, ("tree",))


def test_the_streams_process_never_imports_torch() -> None:
    heavy = "{'torch', 'transformers', 'megatron'}"
    code = f"import sys, streams.process; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
