"""Elections: the highest epoch rules, and of equal ones the first on the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.log.election import TRIES, Deposed, win


class Ledger:
    """A log of elections; before each of mine `rivals` get theirs in."""

    def __init__(self, rivals: list[int]) -> None:
        self.rivals = rivals
        self.rule = (0, "")

    def take(self, epoch: int, holder: str) -> None:
        if epoch > self.rule[0]:
            self.rule = (epoch, holder)

    def propose(self, epoch: int) -> None:
        if self.rivals:
            self.take(epoch + self.rivals.pop(0), "rival")
        self.take(epoch, "me")


@given(st.lists(st.integers(0, 3), max_size=TRIES - 1))
def test_who_wins_rules_with_an_epoch_above_all_before(rivals: list[int]) -> None:
    ledger = Ledger(list(rivals))
    won = win("me", ledger.propose, lambda: ledger.rule)
    assert ledger.rule == (won, "me")
    assert won == 1 + sum(1 + lead for lead in rivals)


def test_who_loses_every_time_ends_and_says_to_whom() -> None:
    ledger = Ledger([0] * (TRIES + 1))
    with pytest.raises(Deposed, match=f"me lost {TRIES} elections, rival rules with epoch {TRIES}"):
        win("me", ledger.propose, lambda: ledger.rule)
