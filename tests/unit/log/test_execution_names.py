"""The name of an execution says its group, its place in it and which attempt it is; other names are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events.executions import UnknownExecution, execution_name, place_of


def test_a_name_by_hand() -> None:
    assert execution_name("g000012", 3, 1) == "g000012.3.1"
    assert place_of("a.b.3.1") == ("a.b", 3, 1)


@given(st.text(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_name_says_what_it_was_made_of(group: str, index: int, attempt: int) -> None:
    assert place_of(execution_name(group, index, attempt)) == (group, index, attempt)


@pytest.mark.parametrize("name", ["g", "g.0", "g.x.0", "g.0.-1"])
def test_a_name_that_is_no_execution_is_refused(name: str) -> None:
    with pytest.raises(UnknownExecution, match="is not named <group>"):
        place_of(name)
