"""What `make bench NAME=policies` makes of who was busy when, by hand."""

import pytest

from tests.bench.bench_policies import GROUPS, LEAST, MOST, SIZE, STEPS, overlap, turns
from tests.bench.policies_cells import Busy


def busy(cell: str, kind: str, began: float, ended: float) -> Busy:
    return Busy(cell, kind, began, ended, 1)


def test_overlap_is_the_part_of_training_in_which_another_cell_samples() -> None:
    """a trains from 0 to 4 and 6 to 10, b from 2 to 3: 8 s in all. c samples from 3 to 7, twice over: 1 + 1 of those."""
    trains = [busy("a", "training", 0.0, 4.0), busy("a", "training", 6.0, 10.0), busy("b", "training", 2.0, 3.0)]
    samples = [busy("c", "sampling", 3.0, 7.0), busy("c", "sampling", 3.5, 6.5)]
    assert overlap([*trains, *samples]) == pytest.approx(2.0 / 8.0)


def test_a_cell_does_not_overlap_with_itself() -> None:
    """Its engine may end a request while its trainer begins."""
    assert overlap([busy("a", "training", 0.0, 4.0), busy("a", "sampling", 0.0, 4.0)]) == 0.0
    assert overlap([busy("a", "training", 0.0, 4.0), busy("a", "sampling", 0.0, 4.0), busy("b", "training", 3.0, 4.0)]) == 0.25


def test_the_executions_follow_from_the_seed_alone() -> None:
    assert turns(3) == turns(3) != turns(4)
    assert [len(group) for group in turns(0)] == [SIZE] * (STEPS * GROUPS)
    drawn = [count for seed in range(50) for group in turns(seed) for count in group]
    assert (min(drawn), max(drawn)) == (LEAST, MOST)
    assert 0.1 < sum(count == MOST for count in drawn) / len(drawn) < 0.3
