"""Roles from structure alone, on executions as agents make them."""

from __future__ import annotations

from growth import EXECUTION, Grown, model_call

from gyre_engine.events.calls import ExecutionClosed, ModelCall, Role, TreeClosed
from gyre_engine.trees import facts
from gyre_engine.trees.roles import infer_roles
from gyre_engine.trees.select import SelectionSettings, select
from gyre_engine.trees.tree import TrajectoryTree

M, MS, SA, SAS, SIDE, AB = Role


class Agent:
    """Writes executions call by call; tokens are numbered through."""

    def __init__(self) -> None:
        self.grown = Grown()
        self.token = 1

    def call(self, parent: str | None, cut: int | None, new: int, out: int, **given: object) -> ModelCall:
        """A call of the agent; `cut` None: at the end of its parent's path."""
        at = cut if cut is not None else len(self.grown.paths[str(parent)]) if parent else 0
        ids = list(range(self.token, self.token + new + out))
        self.token += new + out
        self.grown.add(model_call(len(self.grown.calls), parent, at, ids[:new], ids[new:], **given))
        return self.grown.calls[-1]

    def roles(self) -> list[Role]:
        return list(infer_roles([facts.of_call(call) for call in self.grown.calls]))

    def closed(self) -> TreeClosed:
        tree = TrajectoryTree(EXECUTION)
        for call in self.grown.calls:
            tree.add(facts.of_call(call))
        closed = tree.close(
            ExecutionClosed(execution=EXECUTION, owner_epoch=1, calls=len(tree.calls), last_call=self.grown.calls[-1].call)
        )
        assert closed is not None
        return closed


TITLE = {"tools": 0, "shape": "title", "messages": 2}


def compacted(summary_parent: str | None, **summary: object) -> Agent:
    """C27: three main calls, a title call, a summary call, and a new context with two calls."""
    agent = Agent()
    agent.call(None, None, 10, 4)
    agent.call(None, None, 6, 3, **TITLE)
    agent.call("c0", None, 3, 5, messages=4)
    agent.call("c2", None, 3, 6, messages=6)
    agent.call(summary_parent, None, 8, 7, tools=0, **summary)
    agent.call("c0", 6, 9, 4, messages=3)
    agent.call("c5", None, 2, 5, messages=5)
    return agent


def test_c27_a_title_call_is_no_main_and_a_summary_over_the_main_context_is_one() -> None:
    """C27: the title call is its own root and not main; main and main-summary are both there."""
    bridged = compacted("c3", shape="agent without tools", messages=8)
    assert bridged.roles() == [M, SIDE, M, M, MS, M, M]
    assert [call.call for call in bridged.grown.calls if call.parent is None] == ["c0", "c1"]


def test_c27_a_summary_rendered_anew_on_its_own_root_is_known_by_its_messages() -> None:
    """C27: also where the summary call shares no prefix with what it sums up."""
    rendered = compacted(None, shape="summariser", messages=8)
    assert rendered.roles() == [M, SIDE, M, M, MS, M, M]


def test_c27_one_trajectory_is_main_and_five_train_every_token_of_the_agent_once() -> None:
    """C27: 4 + 5 + 6 sampled by main, 7 by its summary, 4 + 5 in the new context; 3 by the title call."""
    for agent in (compacted("c3", shape="x", messages=8), compacted(None, shape="x", messages=8)):
        closed = agent.closed()
        assert closed.delivered == 1.0
        one = select(EXECUTION, closed.nodes, SelectionSettings(1))
        assert [t.role for t in one.trajectories] == ["main"]
        five = select(EXECUTION, closed.nodes, SelectionSettings(5))
        assert {t.role for t in five.trajectories} == {"main", "main-summary"}
        assert five.trained_tokens == 4 + 5 + 6 + 7 + 4 + 5
        taken = [(one.node, at) for ranges in five.ranges for one in ranges for at in range(one.start, one.stop)]
        assert len(taken) == len(set(taken)) and {node for node, _ in taken} == {"c0", "c2", "c3", "c4", "c5", "c6"}
        assert [(out.what, out.reason, out.tokens) for out in five.left_out] == [("c1", "role side", 3)]


def test_a_title_call_that_comes_first_does_not_become_the_main_agent() -> None:
    agent = Agent()
    agent.call(None, None, 6, 3, **TITLE)
    agent.call(None, None, 10, 4)
    assert agent.roles() == [SIDE, M]


def test_another_shape_with_tools_is_a_sub_agent_and_its_summary_is_its_own() -> None:
    agent = Agent()
    agent.call(None, None, 10, 4)
    agent.call(None, None, 5, 4, shape="explorer", messages=2)
    agent.call("c1", None, 2, 3, shape="explorer", messages=4)
    agent.call(None, None, 9, 3, shape="condense", tools=0, messages=6)
    agent.call("c0", None, 2, 4, messages=4)
    assert agent.roles() == [M, SA, SA, SAS, M]


def test_an_agent_that_acts_by_text_is_main_without_any_tools() -> None:
    agent = Agent()
    agent.call(None, None, 6, 3, **TITLE)
    agent.call(None, None, 10, 4, tools=0)
    agent.call("c1", None, 2, 4, tools=0, messages=4)
    assert agent.roles() == [SIDE, M, M]


def test_of_two_samples_of_one_prompt_the_one_that_goes_on_is_kept() -> None:
    first_used, second_used, none_used = Agent(), Agent(), Agent()
    for agent in (first_used, second_used, none_used):
        agent.call(None, None, 10, 4)
        agent.call("c0", 10, 0, 5)
    first_used.call("c0", None, 2, 3, messages=4)
    second_used.call("c1", None, 2, 3, messages=4)
    assert first_used.roles() == [M, AB, M]
    assert second_used.roles() == [AB, M, M]
    assert none_used.roles() == [AB, M]


def test_another_models_answer_to_the_same_prompt_abandons_no_answer_of_the_policy() -> None:
    """A frozen judge is asked what the policy was asked, before or after it: the policy's answer stands, the judge's is context."""
    frozen = {"untrainable": "sampled by the frozen model 'judge', not by the policy"}
    after, before, gone_on, asked_again = Agent(), Agent(), Agent(), Agent()
    for agent in (after, gone_on, asked_again):
        agent.call(None, None, 10, 4)
        agent.call("c0", 10, 0, 5, **frozen)
    before.call(None, None, 10, 4, **frozen)
    before.call("c0", 10, 0, 5)
    gone_on.call("c1", None, 2, 3, messages=4)
    asked_again.call("c0", 10, 0, 6)
    assert after.roles() == [M, M]
    assert before.roles() == [AB, M]
    assert gone_on.roles() == [M, M, M]
    assert asked_again.roles() == [AB, AB, M]


def test_c16_a_rewritten_history_branches_inside_the_answer_and_abandons_nothing() -> None:
    """C16: The template drops the thinking of turn 1: turn 2 leaves turn 1's path at its first sampled token."""
    agent = Agent()
    agent.call(None, None, 10, 8)
    agent.call("c0", 10, 7, 4, messages=4)
    assert agent.roles() == [M, M]
    chosen = select(EXECUTION, agent.closed().nodes, SelectionSettings())
    assert sorted(t.trained_tokens for t in chosen.trajectories) == [4, 8]


def test_parallel_sub_agents_with_a_common_prompt_head_are_not_retries_of_each_other() -> None:
    agent = Agent()
    agent.call(None, None, 10, 4)
    agent.call(None, None, 8, 4, shape="explorer")
    agent.call("c1", 5, 3, 4, shape="explorer")
    assert agent.roles() == [M, SA, SA]


def test_an_execution_without_calls_has_no_roles() -> None:
    assert infer_roles([]) == ()


def test_a_rule_of_the_config_stands_over_structure() -> None:
    """A memory call with tools and the agent's own shape: structure says main, a rule says side."""
    agent = Agent()
    agent.call(None, None, 10, 4)
    agent.call("c0", None, 3, 5, role=Role.SIDE)
    agent.call("c0", None, 4, 6)
    assert agent.roles() == [M, SIDE, M]
