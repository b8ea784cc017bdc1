"""Names, keys and partitions of the log."""

from __future__ import annotations

import pytest

from gyre_engine.events.executions import Started
from gyre_engine.events.log import RunEnded
from gyre_engine.log.names import full_name, murmur2, partition_of, partitions_of, record_key


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_values_of_kafkas_own_test(data: bytes, expected: int) -> None:
    """The table stands in Apache Kafka's UtilsTest.testMurmur2 (signed 32 bits)."""
    assert murmur2(data) == expected % 2**32


def test_the_sign_bit_is_dropped_before_the_remainder() -> None:
    """murmur2("foobar") = -790332482 = 0xd0e47bbe; without the sign bit 0x50e47bbe = 1357151166, and 1357151166 % 7 = 5."""
    assert partition_of(b"foobar", 7) == 1357151166 % 7


def test_names_carry_prefix_and_run_but_for_the_list_of_runs() -> None:
    assert full_name("gyre", "r1", "model-calls") == "gyre.r1.model-calls"
    assert full_name("gyre", "r1", "runs") == "gyre.runs"


def test_a_runs_start_and_end_survive_compaction_side_by_side() -> None:
    assert record_key(Started(execution="g.0.0"), "r") == b"g.0.0"
    assert record_key(RunEnded(run="r", outcome="completed", reason="", steps=1), "r") == b"r/run-ended"


def test_ordered_topics_have_one_partition() -> None:
    assert [partitions_of(t, 4) for t in ("executions", "trees", "training", "commands", "micro-steps")] == [4, 4, 1, 1, 1]
