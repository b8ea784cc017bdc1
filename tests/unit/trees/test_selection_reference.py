"""Selection against a brute-force reference, and its draws against the probabilities of the rule (method.md, 4).

The reference expands every path in full and knows tokens by their identity; of the code under test it shares the documented
seed alone: draw k of an execution is the blake2b hash of "EXECUTION/k", as a number, modulo the sum of the weights.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from fractions import Fraction
from math import sqrt

import pytest
from growth import EXECUTION, Grown, executions, nodes, trained_leaves
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre_engine.events.calls import Role, TreeNode
from gyre_engine.trees.select import PAPER_ORDER, Selection, SelectionSettings, select


def weights(grown: Grown, leaves: dict[str, Role], masked: set[int]) -> dict[str, int]:
    """Of the highest class with an unmasked token: each leaf's unmasked trainable tokens."""
    for role in PAPER_ORDER:
        found = {leaf: len(grown.trainable & set(grown.paths[leaf]) - masked) for leaf in leaves if leaves[leaf] is role}
        if any(found.values()):
            return found
    return {}


def reference(grown: Grown, found: list[TreeNode], j_max: int) -> list[tuple[str, set[int]]]:
    """The drawn leaves and the tokens that each adds."""
    leaves, masked = trained_leaves(grown, found), set[int]()
    drawn: list[tuple[str, set[int]]] = []
    while len(drawn) < j_max and (weighted := weights(grown, leaves, masked)):
        seed = hashlib.blake2b(f"{EXECUTION}/{len(drawn)}".encode(), digest_size=16, person=b"gyre selection").digest()
        point = int.from_bytes(seed, "little") % sum(weighted.values())
        line = [leaf for leaf, weight in weighted.items() for _ in range(weight)]
        added = grown.trainable & set(grown.paths[line[point]]) - masked
        drawn.append((line[point], added))
        masked |= added
    return drawn


def added(grown: Grown, chosen: Selection) -> list[tuple[str, set[int]]]:
    outputs = {call.call: call.output_ids.tolist() for call in grown.calls}
    tokens = [[t for item in ranges for t in outputs[item.node][item.start : item.stop]] for ranges in chosen.ranges]
    assert all(len(found) == len(set(found)) for found in tokens)
    return [(path.leaf, set(found)) for path, found in zip(chosen.trajectories, tokens, strict=True)]


def compare(data: st.DataObject, j_max: int) -> None:
    grown = data.draw(executions())
    found = data.draw(nodes(grown))
    chosen = select(EXECUTION, found, SelectionSettings(j_max))
    expected = reference(grown, found, j_max)
    assert added(grown, chosen) == expected
    leaves, masked = trained_leaves(grown, found), set[int]()
    for (leaf, tokens), path, odds in zip(expected, chosen.trajectories, chosen.odds, strict=True):
        weighted = weights(grown, leaves, masked)
        assert (path.role, path.trained_tokens) == (leaves[leaf].value, len(tokens))
        assert (odds.weight, odds.total) == (weighted[leaf], sum(weighted.values()))
        assert odds.leaves == sum(weight > 0 for weight in weighted.values())
        masked |= tokens
    assert chosen.trained_tokens == len(masked)
    assert chosen.trained_tokens + sum(out.tokens for out in chosen.left_out) == len(grown.sampled)


@given(st.data(), st.integers(1, 6))
def test_selection_equals_brute_force(data: st.DataObject, j_max: int) -> None:
    compare(data, j_max)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=10_000, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 6))
def test_selection_equals_brute_force_on_ten_thousand_trees(data: st.DataObject, j_max: int) -> None:
    compare(data, j_max)


def forest() -> list[TreeNode]:
    """Three leaves of main under a shared prefix, a summary, and a sub-agent with two ways on."""
    return [
        TreeNode("a", None, 0, 5, 10, True, Role.MAIN, 0),
        TreeNode("b", "a", 15, 1, 10, True, Role.MAIN, 0),
        TreeNode("c", "a", 15, 1, 30, True, Role.MAIN, 0),
        TreeNode("d", "b", 26, 1, 5, True, Role.MAIN, 0),
        TreeNode("e", "b", 26, 1, 20, True, Role.MAIN, 0),
        TreeNode("s", None, 0, 9, 7, True, Role.MAIN_SUMMARY, 0),
        TreeNode("x", None, 0, 4, 8, True, Role.SUB_AGENT, 0),
        TreeNode("y", "x", 12, 1, 2, True, Role.SUB_AGENT, 0),
        TreeNode("z", "x", 12, 1, 6, True, Role.SUB_AGENT, 0),
    ]


def sequences() -> dict[tuple[str, ...], Fraction]:
    """Every order in which six leaves can be drawn and its probability, worked out on sets of tokens."""
    paths = {"c": "ac", "d": "abd", "e": "abe", "s": "s", "y": "xy", "z": "xz"}
    sizes = {"a": 10, "b": 10, "c": 30, "d": 5, "e": 20, "s": 7, "x": 8, "y": 2, "z": 6}
    classes = (("c", "d", "e"), ("s",), ("y", "z"))
    found: dict[tuple[str, ...], Fraction] = {}

    def go_on(drawn: tuple[str, ...], masked: frozenset[str], chance: Fraction) -> None:
        for leaves in classes:
            weight = {leaf: sum(sizes[node] for node in paths[leaf] if node not in masked) for leaf in leaves}
            if total := sum(weight.values()):
                for leaf in leaves:
                    if weight[leaf]:
                        go_on((*drawn, leaf), masked | set(paths[leaf]), chance * Fraction(weight[leaf], total))
                return
        found[drawn] = chance

    go_on((), frozenset(), Fraction(1))
    return found


def test_the_draws_follow_the_rule_s_probabilities() -> None:
    """Pearson's chi-square over all twelve orders; beyond the bound one seed in 30,000 would land (normal approximation by
    Wilson and Hilferty at 4 standard deviations)."""
    number = 6_000
    chances = sequences()
    assert sum(chances.values()) == 1 and len(chances) == 12
    tree, all_of_them = forest(), SelectionSettings(10)
    drawn = Counter(tuple(t.leaf for t in select(f"g{n}.0.0", tree, all_of_them).trajectories) for n in range(number))
    assert drawn.keys() <= chances.keys()
    statistic = sum((drawn[order] - number * chance) ** 2 / (number * chance) for order, chance in chances.items())
    freedom = len(chances) - 1
    assert float(statistic) < freedom * (1 - 2 / (9 * freedom) + 4 * sqrt(2 / (9 * freedom))) ** 3
