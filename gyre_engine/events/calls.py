"""Events on `model-calls` and `trees`: what the policy was asked and what it sampled, token for token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from gyre_engine.events.codec import Float32, Int32, UInt8
from gyre_engine.events.envelope import Event, event


class Provenance(StrEnum):
    """Who wrote a token. Only the policy's are trained on (method.md, 4)."""

    POLICY = "policy"
    SYSTEM = "system"
    USER = "user"
    TOOL = "tool"
    ASSISTANT = "assistant"
    """An assistant message that the policy did not sample here: context."""


class Finish(StrEnum):
    """Why a model call ended, in the proxy's words."""

    STOP = "stop"
    TOOL_CALLS = "tool-calls"
    LENGTH = "length"
    CANCELLED = "cancelled"
    """The client went away: the ids sampled so far are recorded."""
    ERROR = "error"


class Continuity(StrEnum):
    """How a call's prompt relates to what was sampled before."""

    ROOT = "root"
    BRIDGED = "bridged"
    """Extends the parent's sampled ids byte for byte."""
    REWRITTEN = "rewritten"
    """The history was changed, or the template cannot extend it: rendered anew, branches at the first differing token."""


class Role(StrEnum):
    """The role of a leaf (method.md 4; learning.md 5), in falling priority."""

    MAIN = "main"
    MAIN_SUMMARY = "main-summary"
    SUB_AGENT = "sub-agent"
    SUB_AGENT_SUMMARY = "sub-agent-summary"
    SIDE = "side"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """Output tokens from index `start` on were sampled under weight version `version`, by `cell`."""

    start: int
    version: int
    cell: str


@dataclass(frozen=True, slots=True)
class InputSpan:
    """New input tokens from index `start` on were written by `provenance`."""

    start: int
    provenance: Provenance


@event("model-call", topic="model-calls", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall(Event):
    """One call to the policy as a delta against its parent (token-in, token-out).

    The prompt is the parent's path (its prompt and its output) cut to `prefix_len` tokens, then `new_input_ids`; the call's own
    path is that prompt and `output_ids`. `parent` is the call whose own delta holds token `prefix_len - 1`.
    """

    execution: str
    call: str
    """Content-chained id: hash of parent, prefix, new input, output and number (log-rules, 9)."""
    number: int
    """0, 1, 2, ... in the order of the records of this execution."""
    owner_epoch: int
    parent: str | None
    prefix_len: int
    prefix_hash: bytes
    """Chained hash of the path's first `prefix_len` tokens."""
    new_input_ids: Int32
    output_ids: Int32
    """Sampled, the stop token included."""
    logprobs: Float32
    """Of each output id, under the behaviour policy at the run's temperature, before top-p."""
    weight_spans: tuple[WeightSpan, ...]
    input_spans: tuple[InputSpan, ...]
    finish: Finish
    continuity: Continuity
    dialect: str
    temperature: float
    top_p: float
    max_tokens: int
    tools: int
    """How many tools the request offered."""
    messages: int
    """How many messages the request had."""
    shape: str
    """Short hash of the system text and the tools' names: calls of one agent share it (roles are inferred from it)."""
    untrainable: str | None = None
    """Why no output token of this call may be trained on (learning.md, 2), or None."""
    queued_us: int = 0
    """How long the proxy held the agent up: queue, switch, publication (two clocks)."""
    requested_at: int = 0
    first_token_at: int = 0
    finished_at: int = 0
    cached_tokens: int = 0
    engine_calls: int = 1
    """How many engine requests it took (1 + reroutes)."""
    notes: tuple[str, ...] = ()
    """What was ignored or mended in the request, e.g. hosted tools."""
    chain: bytes = b""
    """Hash chain of the history up to and with this answer (gyre_engine.trees.conversation); empty where none was delivered."""
    role: Role | None = None
    """Told by a rule of the config; where none speaks, structure says it."""
    discarded_tokens: int = 0
    """Sampled besides `output_ids` and thrown away, as an interruption let the call begin anew (`schedule.interrupted`)."""
    routed_experts: UInt8 = field(default_factory=lambda: np.empty(0, np.uint8))
    """The experts of the path's tokens from position max(prefix_len - 1, 0) on but for the last one, whose experts the next call
    tells (gyre_engine.experts, docs/models.md); empty without `cells.record_routing`."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt."""
        return self.prefix_len + len(self.new_input_ids)


@event("proxy-owns", topic="model-calls", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOwns(Event):
    """From here on only records of this epoch (or higher) count for the execution (log-rules, 9)."""

    execution: str
    owner_epoch: int
    proxy: str


@event("execution-closed", topic="model-calls", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionClosed(Event):
    """The proxy takes no more calls of this execution: it has `calls` records, the last being `last_call` (log-rules, 12)."""

    execution: str
    owner_epoch: int
    calls: int
    last_call: str | None
    held_us: int = 0
    """Sum of queued_us: what the two clocks differ by."""
    errors: int = 0
    """Calls of this execution that the proxy had to answer with a server error (5xx)."""


@event("node-grown", topic="trees", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGrown(Event):
    """A model call took its place in the execution's tree."""

    execution: str
    node: str
    """The call's id."""
    parent: str | None
    number: int
    cut: int
    """Length of the shared prefix, in tokens from the root."""
    new_input_tokens: int
    output_tokens: int
    trainable: bool
    shape: str
    tools: int
    continuity: Continuity
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One call in a closed tree; the fields as in NodeGrown."""

    node: str
    parent: str | None
    cut: int
    new_input_tokens: int
    output_tokens: int
    trainable: bool
    role: Role
    min_version: int


@event("tree-closed", topic="trees", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeClosed(Event):
    """The whole tree of a closed execution: structure and counts, no token ids."""

    execution: str
    nodes: tuple[TreeNode, ...]
    """In the order of the calls."""
    sampled_tokens: int
    """What the policy sampled in this execution, by the calls' records: also what interrupted calls threw away."""
    tree_tokens: int
    """Sampled tokens that stand in the tree."""
    delivered: float
    """tree_tokens / sampled_tokens; 1.0 where nothing was sampled."""


@event("quarantined", topic="trees", key="execution")
@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(Event):
    """An event of this execution could not be read or applied: the execution leaves training (log-rules, 16)."""

    execution: str
    reason: str
