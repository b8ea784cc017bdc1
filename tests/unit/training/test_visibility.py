"""Spans against the rule they come from: key j is visible to query i iff j <= i < end[j]."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.training.visibility import Span, spans


@st.composite
def ends(draw):
    """`end` of a random forest of tokens, from each token's parent: the end of its subtree."""
    parents, path = [], []
    for token in range(draw(st.integers(1, 30))):
        depth = draw(st.one_of(st.just(len(path)), st.integers(0, len(path))))
        path = path[:depth]
        parents.append(path[-1] if path else -1)
        path.append(token)
    end = list(range(1, len(parents) + 1))
    for token in range(len(parents) - 1, -1, -1):
        if parents[token] >= 0:
            end[parents[token]] = max(end[parents[token]], end[token])
    return np.array(end, dtype=np.int32)


@settings(deadline=None)
@given(ends())
def test_spans_see_exactly_what_the_rule_says(end):
    seen = np.zeros((len(end), len(end)), dtype=int)
    for span in spans(end):
        for query in range(span.start, span.stop):
            for start, stop in (*span.ancestors, (span.start, query + 1)):
                seen[query, start:stop] += 1
    rows = np.arange(len(end))
    rule = (rows[None] <= rows[:, None]) & (rows[:, None] < end[None])
    assert np.array_equal(seen, rule.astype(int))


def test_a_chain_is_one_span_and_neighbours_are_apart():
    """Two chains of 3 and 2; then a trunk of 2 with leaves of 1 and 2."""
    assert spans(np.array([3, 3, 3, 5, 5], dtype=np.int32)) == (Span(0, 3, ()), Span(3, 5, ()))
    assert spans(np.array([5, 5, 3, 5, 5], dtype=np.int32)) == (
        Span(0, 2, ()),
        Span(2, 3, ((0, 2),)),
        Span(3, 5, ((0, 2),)),
    )
