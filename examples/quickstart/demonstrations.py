"""What the model is shown before it learns by reward: episodes of a beginner who is mostly wrong and sometimes repairs it.

Only the training split is shown. The tokens are those that the live harness and proxy will see: the rendered prompt,
what the assistant writes up to its end token, and the bridge to its next turn.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from renderers.qwen3 import Qwen3Renderer

from examples.quickstart.checker import report
from examples.quickstart.prompt import FINAL, MAX_WRITES, WRITE_TOOL, opening_messages, write_message
from examples.quickstart.tasks import Task, outcome


@dataclass(frozen=True, slots=True)
class Habits:
    """How the demonstrated beginner works: it knows the right solution among the wrong ones, not which it is.

    right: chance that a first write is right; repair: chance that a later write is right; give_up: chance to stop after a
    failed check.
    """

    right: float = 0.25
    repair: float = 0.33
    give_up: float = 0.75


@dataclass(frozen=True, slots=True)
class Episode:
    """One rendered episode. tokens: int[n]; sampled: bool[n], what the assistant said."""

    tokens: tuple[int, ...]
    sampled: tuple[bool, ...]


def visible_report(task: Task, code: str) -> str:
    """What the check says about one of the family's own solutions."""
    cases = list(task.visible)
    return report(task.name, [outcome(code, task.name, args) for args, _ in cases], cases)


def writes(task: Task, habits: Habits, rng: random.Random) -> Iterator[str]:
    """The files that the beginner writes, one after the other."""
    chance = habits.right
    tried: set[str] = set()
    for _ in range(MAX_WRITES):
        mistakes = [code for code in task.mistakes if code not in tried]
        code = task.solution if rng.random() < chance or not mistakes else rng.choice(mistakes)
        yield code
        if visible_report(task, code) == "ok" or rng.random() < habits.give_up:
            return
        tried.add(code)
        chance = habits.repair


def assistant_ids(renderer: Qwen3Renderer, message: dict[str, object]) -> list[int]:
    """The ids that a model samples to say `message`, its end token included."""
    rendered = renderer.render([*opening_messages("-"), message, {"role": "user", "content": "-"}])
    return [token for token, sampled in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if sampled]


def prompt_ids(renderer: Qwen3Renderer, task: Task) -> list[int]:
    """The first model call's input."""
    return list(renderer.render_ids(opening_messages(task.instruction), tools=[WRITE_TOOL], add_generation_prompt=True))


def next_prompt_ids(renderer: Qwen3Renderer, prompt: list[int], completion: list[int], answer: str) -> list[int]:
    """The next model call's input: everything so far, then the tool's answer.

    Raises ValueError when the renderer cannot extend the ids.
    """
    bridged = renderer.bridge_to_next_turn(prompt, completion, [{"role": "tool", "content": answer}], tools=[WRITE_TOOL])
    if bridged is None:
        raise ValueError("the renderer cannot continue this turn; a completion must end with <|im_end|>")
    return list(bridged.token_ids)


def demonstrate(renderer: Qwen3Renderer, task: Task, habits: Habits, rng: random.Random) -> Episode:
    """One episode, rendered turn by turn as the proxy does it."""
    tokens, sampled = prompt_ids(renderer, task), []
    sampled = [False] * len(tokens)
    for code in writes(task, habits, rng):
        said = assistant_ids(renderer, write_message(code))
        following = next_prompt_ids(renderer, tokens, said, visible_report(task, code))
        sampled += [True] * len(said) + [False] * (len(following) - len(tokens) - len(said))
        tokens = following
    said = assistant_ids(renderer, {"role": "assistant", "content": FINAL})
    return Episode((*tokens, *said), (*sampled, *[True] * len(said)))
