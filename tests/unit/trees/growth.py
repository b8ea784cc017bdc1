"""Random executions for the tests of this folder: every token has an id of its own, so a token's identity is its value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from gyre_engine.events.calls import Continuity, Finish, ModelCall, Role, TreeNode, WeightSpan
from gyre_engine.trees.select import PAPER_ORDER

EXECUTION = "g7.0.0"


def model_call(number: int, parent: str | None, cut: int, new: list[int], out: list[int], **given: object) -> ModelCall:
    """A call whose log-probabilities are -token/1000; other fields as an agent's own call has them."""
    call = ModelCall(
        execution=EXECUTION,
        call=f"c{number}",
        number=number,
        owner_epoch=1,
        parent=parent,
        prefix_len=cut,
        prefix_hash=b"",
        new_input_ids=np.array(new, np.int32),
        output_ids=np.array(out, np.int32),
        logprobs=np.array([-token / 1000 for token in out], np.float32),
        weight_spans=(WeightSpan(0, 0, "cell-0"),),
        input_spans=(),
        finish=Finish.STOP,
        continuity=Continuity.ROOT if parent is None else Continuity.BRIDGED,
        dialect="chat",
        temperature=1.0,
        top_p=1.0,
        max_tokens=64,
        tools=2,
        messages=2,
        shape="agent",
    )
    return replace(call, **given)  # type: ignore[arg-type]


@dataclass
class Grown:
    """Calls, and each call's full path as token ids."""

    calls: list[ModelCall] = field(default_factory=list)
    paths: dict[str, list[int]] = field(default_factory=dict)

    def add(self, call: ModelCall) -> None:
        self.calls.append(call)
        before = [] if call.parent is None else self.paths[call.parent][: call.prefix_len]
        self.paths[call.call] = before + call.new_input_ids.tolist() + call.output_ids.tolist()

    def holder(self, call: ModelCall, length: int) -> ModelCall:
        """The call whose own delta holds token `length - 1` of the path of `call`."""
        token = self.paths[call.call][length - 1]
        return next(c for c in self.calls if token in c.new_input_ids.tolist() + c.output_ids.tolist())

    @property
    def trainable(self) -> set[int]:
        return {token for c in self.calls if c.untrainable is None for token in c.output_ids.tolist()}

    @property
    def sampled(self) -> set[int]:
        return {token for c in self.calls for token in c.output_ids.tolist()}


@st.composite
def executions(draw: st.DrawFn, largest: int = 12) -> Grown:
    """A tree with several roots, branches anywhere (also inside an output), empty outputs and calls that may not train."""
    grown = Grown()
    token = 1
    for number in range(draw(st.integers(1, largest))):
        parent, cut = None, 0
        if grown.calls and draw(st.integers(0, 9)):
            chosen = draw(st.sampled_from(grown.calls))
            cut = draw(st.integers(1, len(grown.paths[chosen.call])))
            cut = draw(st.sampled_from([cut, len(grown.paths[chosen.call])]))
            parent = grown.holder(chosen, cut).call
        new = draw(st.integers(0 if parent else 1, 3))
        out = draw(st.integers(0, 4))
        ids = list(range(token, token + new + out))
        token += new + out
        spans = (WeightSpan(0, draw(st.integers(0, 3)), "a"),)
        if out > 1:
            spans += (WeightSpan(draw(st.integers(1, out - 1)), 4, "b"),)
        untrainable = draw(st.sampled_from([None, None, None, "greedy"]))
        grown.add(model_call(number, parent, cut, ids[:new], ids[new:], weight_spans=spans, untrainable=untrainable))
    return grown


@st.composite
def nodes(draw: st.DrawFn, grown: Grown) -> list[TreeNode]:
    """The nodes of `grown` with roles at random."""
    found = []
    for call in grown.calls:
        new, out = len(call.new_input_ids), len(call.output_ids)
        role = draw(st.sampled_from(list(Role)))
        trains = call.untrainable is None and out > 0
        oldest = min(span.version for span in call.weight_spans)
        found.append(TreeNode(call.call, call.parent, call.prefix_len, new, out, trains, role, oldest))
    return found


def owning(grown: Grown) -> list[str]:
    """Calls with tokens of their own."""
    return [c.call for c in grown.calls if len(c.new_input_ids) + len(c.output_ids)]


def strictly_extends(longer: list[int], shorter: list[int]) -> bool:
    return len(longer) > len(shorter) and longer[: len(shorter)] == shorter


def trained_leaves(grown: Grown, found: list[TreeNode]) -> dict[str, Role]:
    """Reference: of the calls whose role trains, those whose path no other such call goes on from its end."""
    able = {n.node: n.role for n in found if n.role in PAPER_ORDER and n.node in owning(grown)}
    return {
        name: role
        for name, role in able.items()
        if not any(strictly_extends(grown.paths[other], grown.paths[name]) for other in able)
    }
