"""The two dozen families of tasks: what is asked, the function that is right, and functions that are wrong in ways a
beginner's would be.

A family's text and code hold `{k}` (a small number) or `{c}` (a letter) where it has a constant. Code is what stands
after `return` unless it holds a line of its own. It has no double quote and no backslash, so that it reads the same
inside a JSON string.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Args = tuple[object, ...]


def _numbers(rng: random.Random) -> Args:
    return ([rng.randint(-9, 9) for _ in range(rng.randint(3, 5))],)


def _few_values(rng: random.Random) -> Args:
    return ([rng.randint(1, 6) for _ in range(rng.randint(5, 6))],)


def _positive(rng: random.Random) -> Args:
    return (rng.randint(1, 30),)


def _whole(rng: random.Random) -> Args:
    return (rng.randint(-12, 25),)


def _long_number(rng: random.Random) -> Args:
    return (rng.choice((rng.randint(2, 99), rng.randint(100, 9999))),)


def _pair(rng: random.Random) -> Args:
    return (rng.randint(-9, 9), rng.randint(-9, 9))


_WORDS = ("red", "oak", "sea", "level", "noon", "ant", "moon", "area", "tea", "blue", "door", "eve", "stats", "bed")


def _word(rng: random.Random) -> Args:
    return (rng.choice(_WORDS) + rng.choice(("", "", rng.choice(_WORDS))),)


def _sentence(rng: random.Random) -> Args:
    return (" ".join(rng.choice(_WORDS) for _ in range(rng.randint(2, 3))),)


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of task.

    parameters: the signature's parameter list; constants: the values that {k} or {c} takes, () for a family without one;
    draw: arguments for one test case.
    """

    key: str
    parameters: str
    text: str
    draw: Callable[[random.Random], Args]
    constants: tuple[str, ...] = ()
    right: str = field(kw_only=True)
    wrong: tuple[str, ...] = field(kw_only=True)


NUMBERS = ("2", "3", "4")
LETTERS = ("a", "e", "o")

# fmt: off
_OF_LISTS = (
    Family("spread", "xs", "the largest of xs minus the smallest", _numbers,
           right="max(xs) - min(xs)",
           wrong=("max(xs)", "min(xs) - max(xs)", "xs[-1] - xs[0]")),
    Family("cap", "xs", "each number of xs, but at most {k}", _numbers, NUMBERS,
           right="[min(x, {k}) for x in xs]",
           wrong=("[max(x, {k}) for x in xs]", "[x for x in xs if x < {k}]", "[{k} for x in xs]")),
    Family("add_each", "xs", "each number of xs plus {k}", _numbers, NUMBERS,
           right="[x + {k} for x in xs]",
           wrong=("[x * {k} for x in xs]", "[x - {k} for x in xs]", "xs + [{k}]")),
    Family("drop", "xs", "xs without its first {k}", _few_values, NUMBERS,
           right="xs[{k}:]",
           wrong=("xs[:{k}]", "xs[-{k}:]", "xs[{k}]")),
    Family("last", "xs", "the last {k} of xs", _few_values, NUMBERS,
           right="xs[-{k}:]",
           wrong=("xs[{k}:]", "xs[:{k}]", "xs[-{k}]")),
    Family("every", "xs", "every {k}th of xs from the first", _few_values, NUMBERS,
           right="xs[::{k}]",
           wrong=("xs[{k}:]", "xs[:{k}]", "xs[{k}::{k}]")),
    Family("descending", "xs", "xs sorted, largest first", _numbers,
           right="sorted(xs)[::-1]",
           wrong=("sorted(xs)", "xs[::-1]", "sorted(xs)[-1]")),
    Family("distinct", "xs", "the different numbers of xs, sorted", _few_values,
           right="sorted(set(xs))",
           wrong=("sorted(xs)", "set(xs)", "len(set(xs))")),
    Family("second", "xs", "the second largest of xs", _numbers,
           right="sorted(xs)[-2]",
           wrong=("sorted(xs)[-1]", "sorted(xs)[1]", "xs[-2]")),
    Family("squares", "xs", "the sum of the squares of xs", _numbers,
           right="sum(x * x for x in xs)",
           wrong=("sum(x + x for x in xs)", "sum(xs) * sum(xs)", "[x * x for x in xs]")),
    Family("count_above", "xs", "how many numbers in xs are above {k}", _numbers, NUMBERS,
           right="sum(x > {k} for x in xs)",
           wrong=("sum(x for x in xs if x > {k})", "sum(x < {k} for x in xs)", "len(xs) - {k}")),
    Family("mean", "xs", "the mean of xs, rounded down", _numbers,
           right="sum(xs) // len(xs)",
           wrong=("sum(xs) / len(xs)", "sum(xs) // 2", "len(xs) // sum(xs)")),
    Family("backwards", "xs", "xs from back to front", _numbers,
           right="xs[::-1]",
           wrong=("xs[::1]", "sorted(xs)", "xs[-1]")),
    Family("where_largest", "xs", "the index of the largest of xs", _numbers,
           right="xs.index(max(xs))",
           wrong=("max(xs)", "xs.index(min(xs))", "max(xs.index(x) for x in xs)")),
    Family("times_in", "xs", "how often {k} is in xs", _few_values, NUMBERS,
           right="xs.count({k})",
           wrong=("xs.index({k})", "{k} in xs", "len(xs)")),
)

_OF_NUMBERS = (
    Family("is_multiple", "n", "whether n is a multiple of {k}", _positive, NUMBERS,
           right="n % {k} == 0",
           wrong=("n // {k} == 0", "n % {k}", "n % {k} == 1")),
    Family("weighted", "a, b", "a plus {k} times b", _pair, NUMBERS,
           right="a + {k} * b",
           wrong=("(a + {k}) * b", "{k} * a + b", "a + {k} + b")),
    Family("distance", "a, b", "how far a is from b", _pair,
           right="abs(a - b)",
           wrong=("a - b", "b - a", "abs(a + b)")),
    Family("power", "n", "n to the power of {k}", _whole, NUMBERS,
           right="n ** {k}",
           wrong=("n * {k}", "{k} ** n", "n + {k}")),
    Family("digits", "n", "how many digits n has", _long_number,
           right="len(str(n))",
           wrong=("n % 10", "len(n)", "str(n)")),
)

_OF_TEXT = (
    Family("words", "s", "how many words s has", _sentence,
           right="len(s.split())",
           wrong=("len(s)", "s.count(' ')", "s.split()")),
    Family("repeat", "s", "s written {k} times", _word, NUMBERS,
           right="s * {k}",
           wrong=("s + {k}", "s[:{k}]", "[s] * {k}")),
    Family("head", "s", "the first {k} letters of s", _word, NUMBERS,
           right="s[:{k}]",
           wrong=("s[{k}:]", "s[{k}]", "s[-{k}:]")),
    Family("without", "s", "s without the letter {c}", _word, LETTERS,
           right="s.replace('{c}', '')",
           wrong=("s.replace('{c}', ' ')", "s.split('{c}')", "s.count('{c}')")),
)
# fmt: on

FAMILIES = _OF_LISTS + _OF_NUMBERS + _OF_TEXT

NAMES = (
    "total",
    "pick",
    "scan",
    "run",
    "make",
    "find",
    "get",
    "work",
    "go",
    "step",
    "take",
    "show",
    "turn",
    "use",
    "read",
    "keep",
)
"""Names that the asked function may have."""


def source(family: Family, name: str, body: str, constant: str | None) -> str:
    """The whole file: `def name(parameters):` and the body, with the constant filled in."""
    filled = body if constant is None else body.replace("{k}", constant).replace("{c}", constant)
    lead = "" if "return" in filled else "return "
    return f"def {name}({family.parameters}):\n    {lead}{filled}\n"


def instruction(family: Family, name: str, constant: str | None) -> str:
    """What the user asks, in one line."""
    text = family.text if constant is None else family.text.replace("{k}", constant).replace("{c}", constant)
    return f"Write {name}({family.parameters}): {text}."
