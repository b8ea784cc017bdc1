"""Trajectory trees: what a call costs at the end of a long execution, and what the tree's stream writes.

One execution of 1,000 calls and about 700,000 unique tokens with 12 branches, through the proxy's own matching and rendering,
then onto a real broker and through the live trajectory-trees worker. The last line is one JSON object:

insert_cost_ratio            matching, prompt and record of a call, tokenising what is new included: median of the last 100
                             calls / median of the first 100; the median of three executions
state_bytes_per_unique_byte  bytes that the worker wrote (`trees`, and changelogs) / bytes of the unique tokens (4 each)
bytes_per_unique_token       bytes of model-calls on the broker's disk / unique tokens
replay_events_per_s          log -> trees on the replay path, over many such executions: median of the repeats
consume_events_per_s         a bare consume() loop over the same records: median of the repeats
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from gyre_engine.events.calls import ExecutionClosed, Finish, ModelCall, TreeClosed, WeightSpan
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import ensure_topics
from gyre_engine.trees.conversation import Author, Message, ToolCall, begin, link, wire_id
from gyre_engine.trees.path import call_id
from infra.broker.broker import Broker, BrokerSettings
from producers.proxy.exchange import Ask
from producers.proxy.execution import Execution
from producers.proxy.histories import Head, History
from producers.proxy.prompt import prompt_for
from producers.proxy.rendering import Rendering
from tests.bench.agents import REPLY, TOOLS, make_model_folder, words
from tests.bench.bench_log import WORKER, consumed, replayed, working

CALLS, BRANCHES, TOKENS = 1_000, 12, 700_000
REPEATS = 3
REPLAYED = 60
"""Executions of the replay's measurement; their calls are those of the first, under other names."""
LIMIT_S = 120.0


@dataclass
class Agent:
    """An agent that works on, and now and then goes back to an earlier point or begins a new context."""

    rendering: Rendering
    rng: random.Random
    name: str
    execution: Execution = field(init=False)
    messages: list[Message] = field(default_factory=list)
    chains: list[bytes] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    unique: int = 0

    def __post_init__(self) -> None:
        self.execution = Execution(self.name, 1, self.rendering.thinking)
        size = self.rendering.tokenizer.encode(words(self.rng, 1_000))
        self.per_word = len(size) / 1_000
        self.output = np.array([*self.rendering.tokenizer.encode(REPLY), self.rendering.stop_ids[0]], dtype=np.int32)
        self.results = [words(self.rng, int((TOKENS / CALLS - len(self.output) - 20) / self.per_word)) for _ in range(50)]
        self.begin("You are an agent.")

    def begin(self, task: str) -> None:
        """A new context."""
        base = begin(orjson.dumps(TOOLS, option=orjson.OPT_SORT_KEYS))
        self.messages = [Message(Author.SYSTEM, "You are an agent."), Message(Author.USER, f"{task} {self.results[0]}")]
        self.chains = self.execution.conversation.links(base, self.messages)

    def call(self, number: int) -> ModelCall:
        """One call: its prompt, its record, and the record taken up."""
        ask = Ask("chat", "policy", History(Head(None, TOOLS), [], self.messages, [], self.chains, 0), None, False)
        since = time.perf_counter()
        prompt = prompt_for(self.execution, ask, self.rendering)
        name = call_id(self.name, prompt.at.call, prompt.prefix_hash, prompt.new, self.output, number)
        answer = Message(Author.ASSISTANT, "", calls=(ToolCall(wire_id(name, 0), "bash", '{"command": "make test"}'),))
        record = ModelCall(
            execution=self.name, call=name, number=number, owner_epoch=1, parent=prompt.at.call, prefix_len=prompt.at.length,
            prefix_hash=prompt.prefix_hash, new_input_ids=prompt.new, output_ids=self.output,
            logprobs=-np.array([self.rng.random() for _ in self.output], dtype=np.float32),
            weight_spans=(WeightSpan(0, 3, "cell-1"),), input_spans=prompt.spans, finish=Finish.TOOL_CALLS,
            continuity=prompt.continuity, dialect="chat", temperature=1.0, top_p=1.0, max_tokens=4096, tools=len(TOOLS),
            messages=len(self.messages), shape=prompt.shape, chain=link(prompt.chain, answer), requested_at=time.time_ns() // 1000,
            first_token_at=time.time_ns() // 1000, finished_at=time.time_ns() // 1000,
        )  # fmt: skip
        self.execution.learn(record)
        self.execution.answered(record, [wire_id(name, 0)])
        self.seconds.append(time.perf_counter() - since)
        self.unique += len(prompt.new) + len(self.output)
        self._go_on(answer, number)
        return record

    def _go_on(self, answer: Message, number: int) -> None:
        """Mostly append-only; every so often an earlier point, or a new context after a compaction."""
        if number % (CALLS // BRANCHES) == CALLS // BRANCHES - 1:
            if number % 2:
                self.begin(f"Go on. So far: {number}")
                return
            keep = 2 * self.rng.randrange(len(self.messages) // 4, len(self.messages) // 2) or 2
            self.messages, self.chains = self.messages[:keep], self.chains[:keep]
            new = [Message(Author.USER, f"No: {number}. {self.results[number % 50]}")]
        else:
            result = f"{number}: {self.results[number % 50]}"
            new = [answer, Message(Author.TOOL, result, answers=answer.calls[0].id)]
        self.chains = [*self.chains, *self.execution.conversation.links(self.chains[-1], new)]
        self.messages = [*self.messages, *new]


def whole(rendering: Rendering, seed: int) -> tuple[Agent, list[ModelCall]]:
    agent = Agent(rendering, random.Random(seed), f"g{seed}.0.0")
    return agent, [agent.call(number) for number in range(CALLS)]


def cost_ratio(agents: list[Agent]) -> float:
    ratios = [statistics.median(a.seconds[-100:]) / statistics.median(a.seconds[:100]) for a in agents]
    return statistics.median(ratios)


def on_disk(folder: Path, run: str, *parts: str) -> int:
    names = [f"gyre.{run}.{part}" for part in parts]
    return sum(file.stat().st_size for file in folder.rglob("*.log") if any(n in file.parent.name for n in names))


def state_bytes(log: KafkaLog, folder: Path, calls: list[ModelCall]) -> int:
    """Let the live worker build the tree; what it has written."""
    follower = log.follow(["trees"])
    with working(WORKER, log):
        log.append_all([*calls, closing(calls)])
        limit = time.monotonic() + LIMIT_S
        while not any(isinstance(r.event, TreeClosed) for r in follower.poll(0.5)):
            if time.monotonic() > limit:
                raise TimeoutError(f"the tree was not closed within {LIMIT_S:.0f} s")
    follower.close()
    return on_disk(folder, log.run, "trees", "streams")


def closing(calls: list[ModelCall]) -> ExecutionClosed:
    last = calls[-1]
    return ExecutionClosed(execution=last.execution, owner_epoch=1, calls=len(calls), last_call=last.call, held_us=0, errors=0)


def fill(log: KafkaLog, calls: list[ModelCall]) -> int:
    """The same calls under many names, side by side as live runs write them."""
    for call in calls:
        log.append_all([dataclasses.replace(call, execution=f"r{number}.0.0") for number in range(REPLAYED)])
    return len(calls) * REPLAYED


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as name:
        folder = Path(name)
        model = folder / "model"
        model.mkdir()
        rendering = Rendering(make_model_folder(model), "qwen3")
        built = [whole(rendering, seed) for seed in range(REPEATS)]
        agents, (agent, calls) = [one for one, _ in built], built[0]
        roots = sum(call.parent is None for call in calls)
        print(f"{CALLS} calls, {agent.unique} unique tokens, {roots} roots, longest context {max(map(context, calls))} tokens")
        result: dict[str, object] = {"insert_cost_ratio": round(cost_ratio(agents), 3), "unique_tokens": agent.unique}
        result["insert_ms_p50"] = round(1e3 * statistics.median(s for a in agents for s in a.seconds), 3)
        print(result, flush=True)
        with Broker(BrokerSettings(folder / "broker")) as broker:
            settings = KafkaSettings(broker.bootstrap_servers)
            ensure_topics(settings, "one")
            log = KafkaLog(settings, "one")
            result["state_bytes_per_unique_byte"] = round(state_bytes(log, folder, calls) / (4 * agent.unique), 4)
            result["bytes_per_unique_token"] = round(on_disk(folder / "broker", "one", "model-calls") / agent.unique, 2)
            log.close()
            ensure_topics(settings, "many")
            log = KafkaLog(settings, "many")
            count = fill(log, calls)
            result["consume_events_per_s"] = round(statistics.median(consumed(log, count) for _ in range(REPEATS)))
            result["replay_events_per_s"] = round(statistics.median(replayed(log, count) for _ in range(REPEATS)))
            log.close()
    print(json.dumps(result), flush=True)


def context(call: ModelCall) -> int:
    return call.prompt_tokens + len(call.output_ids)


if __name__ == "__main__":
    main()
