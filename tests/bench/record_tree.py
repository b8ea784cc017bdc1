"""Records the agent tree of bench_tree_step: Qwen Code asks six sub-agents, one after the other; each looks around and answers.

The client, its sandbox, the runner and the proxy are real, the answers are scripted. Kept are no texts but how many tokens each
segment has and which of them the model sampled, counted with the tokenizer.json that is given (of SmolLM2, for layers of its shape):

    python -m tests.bench.record_tree TOKENIZER.json

Writes recorded_tree.json: segments depth-first, each [parent, [tokens, sampled], ...]. Needs `make install-harnesses`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from gyre_engine.events.calls import ModelCall
from gyre_engine.sampling.script_file import Answer
from gyre_engine.trees.facts import of_call
from gyre_engine.trees.segments import Run, segments_of
from tests.integration.harness_bench import MODEL, bench, scripted, tool_call

RECORDED = Path(__file__).with_name("recorded_tree.json")
SUB_AGENTS = 6
TOOLS = ("list_directory", "read_file", "grep_search", "glob", "edit", "write_file", "run_shell_command", "todo_write")
HELPER = "---\nname: looker\ndescription: Looks at a part of a folder.\ntools:\n{}---\nYou look and tell.\n".format(
    "".join(f"  - {tool}\n" for tool in TOOLS)
)
"""The sub-agent, as a workspace describes it."""


def asks(number: int) -> Answer:
    """The main agent's call for one sub-agent, once the one before has answered."""
    call = tool_call(
        "agent",
        description=f"look {number}",
        prompt=f"HELPER-{number}: what is in part {number}?",
        subagent_type="looker",
    )
    after = (f"I ask {number - 1}.",) if number else ()
    return Answer(contains=after, text=f"I ask {number}.\n{call}")


def script() -> list[Answer]:
    """The last answers stand first: the first that fits is played."""
    looks = shell("ls -la; cat seed.txt")
    found = list[Answer]()
    for number in range(SUB_AGENTS):
        own = (f"HELPER-{number}:",)
        found.append(Answer(contains=own, lacks=("I ask",), last=("seed.txt",), text=f"There is a seed in part {number}."))
        found.append(Answer(contains=own, lacks=("I ask",), text=f"I look at part {number}.\n{looks}"))
    done = Answer(contains=(f"I ask {SUB_AGENTS - 1}.",), text="All six have looked.")
    return [*found, done, *(asks(number) for number in reversed(range(SUB_AGENTS)))]


def shell(command: str) -> str:
    return tool_call("run_shell_command", command=command, is_background=False)


async def recorded(folder: Path) -> list[ModelCall]:
    async with bench(folder) as on:
        on.cell("a", 0, scripted(*script()))
        task = "Have six lookers look at the parts of this folder."
        return (await on.run("qwen-code", task, files={".qwen/agents/looker.md": HELPER})).calls


def pieces(call: ModelCall, run: Run, own: Tokenizer, counted: Tokenizer) -> list[list[int]]:
    """[tokens, sampled] of a run's input and of its output, in the other tokenizer."""
    delta = np.concatenate([call.new_input_ids, call.output_ids])
    middle = min(max(run.start, call.prompt_tokens), run.stop)
    found = []
    for start, stop, sampled in ((run.start, middle, 0), (middle, run.stop, 1)):
        text = own.decode(delta[start - call.prefix_len : stop - call.prefix_len].tolist(), skip_special_tokens=False)
        found.append([len(counted.encode(text, add_special_tokens=False).ids), sampled])
    return [piece for piece in found if piece[0]]


def main() -> None:
    counted, own = Tokenizer.from_file(sys.argv[1]), Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as name:
        calls = asyncio.run(recorded(Path(name)))
    tree = segments_of([of_call(call) for call in calls])
    rows = [
        [segment.parent, *(piece for run in segment.runs for piece in pieces(calls[run.node], run, own, counted))]
        for segment in tree.segments
    ]
    RECORDED.write_text(json.dumps(rows) + "\n")
    print(f"{len(calls)} calls, {len(rows)} segments, {sum(n for _, *some in rows for n, _ in some)} tokens -> {RECORDED}")


if __name__ == "__main__":
    main()
