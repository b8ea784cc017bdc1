"""The two dozen families of tasks: what is asked, the function that is right, and functions that are wrong in ways a
beginner's would be.

The table has a row a family: its name, what it is given, what is asked, the code that is right, code that is wrong. Text and
code hold `{k}` (a small number) or `{c}` (a letter) where a family has a constant. Code is what stands after `return`
unless it holds a line of its own. It has no double quote and no backslash, so that it reads the same inside a JSON string.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

Args = tuple[object, ...]

CONSTANTS = {"{k}": ("2", "3", "4"), "{c}": ("a", "e", "o")}
"""The values that each mark takes."""

_WORDS = ("red", "oak", "sea", "level", "noon", "ant", "moon", "area", "tea", "blue", "door", "eve", "stats", "bed")


@dataclass(frozen=True, slots=True)
class Given:
    """What a function is given: its parameter list, and how to draw arguments for one test case."""

    parameters: str
    draw: Callable[[random.Random], Args]


NUMBERS = Given("xs", lambda rng: ([rng.randint(-9, 9) for _ in range(rng.randint(3, 5))],))
FEW_VALUES = Given("xs", lambda rng: ([rng.randint(1, 6) for _ in range(rng.randint(5, 6))],))
POSITIVE = Given("n", lambda rng: (rng.randint(1, 30),))
WHOLE = Given("n", lambda rng: (rng.randint(-12, 25),))
LONG_NUMBER = Given("n", lambda rng: (rng.choice((rng.randint(2, 99), rng.randint(100, 9999))),))
PAIR = Given("a, b", lambda rng: (rng.randint(-9, 9), rng.randint(-9, 9)))
WORD = Given("s", lambda rng: (rng.choice(_WORDS) + rng.choice(("", "", rng.choice(_WORDS))),))
SENTENCE = Given("s", lambda rng: (" ".join(rng.choice(_WORDS) for _ in range(rng.randint(2, 3))),))


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of task."""

    key: str
    given: Given
    text: str
    right: str
    wrong: tuple[str, ...]

    @property
    def constants(self) -> tuple[str, ...]:
        """The values that its constant takes, () for a family without one."""
        return next((values for mark, values in CONSTANTS.items() if mark in self.text), ())


_TABLE: tuple[tuple[str, Given, str, str, tuple[str, ...]], ...] = (
    ("spread", NUMBERS, "the largest of xs minus the smallest",
     "max(xs) - min(xs)", ("max(xs)", "min(xs) - max(xs)", "xs[-1] - xs[0]")),
    ("cap", NUMBERS, "each number of xs, but at most {k}",
     "[min(x, {k}) for x in xs]", ("[max(x, {k}) for x in xs]", "[x for x in xs if x < {k}]", "[{k} for x in xs]")),
    ("add_each", NUMBERS, "each number of xs plus {k}",
     "[x + {k} for x in xs]", ("[x * {k} for x in xs]", "[x - {k} for x in xs]", "xs + [{k}]")),
    ("drop", FEW_VALUES, "xs without its first {k}",
     "xs[{k}:]", ("xs[:{k}]", "xs[-{k}:]", "xs[{k}]")),
    ("last", FEW_VALUES, "the last {k} of xs",
     "xs[-{k}:]", ("xs[{k}:]", "xs[:{k}]", "xs[-{k}]")),
    ("every", FEW_VALUES, "every {k}th of xs from the first",
     "xs[::{k}]", ("xs[{k}:]", "xs[:{k}]", "xs[{k}::{k}]")),
    ("descending", NUMBERS, "xs sorted, largest first",
     "sorted(xs)[::-1]", ("sorted(xs)", "xs[::-1]", "sorted(xs)[-1]")),
    ("distinct", FEW_VALUES, "the different numbers of xs, sorted",
     "sorted(set(xs))", ("sorted(xs)", "set(xs)", "len(set(xs))")),
    ("second", NUMBERS, "the second largest of xs",
     "sorted(xs)[-2]", ("sorted(xs)[-1]", "sorted(xs)[1]", "xs[-2]")),
    ("squares", NUMBERS, "the sum of the squares of xs",
     "sum(x * x for x in xs)", ("sum(x + x for x in xs)", "sum(xs) * sum(xs)", "[x * x for x in xs]")),
    ("count_above", NUMBERS, "how many numbers in xs are above {k}",
     "sum(x > {k} for x in xs)", ("sum(x for x in xs if x > {k})", "sum(x < {k} for x in xs)", "len(xs) - {k}")),
    ("mean", NUMBERS, "the mean of xs, rounded down",
     "sum(xs) // len(xs)", ("sum(xs) / len(xs)", "sum(xs) // 2", "len(xs) // sum(xs)")),
    ("backwards", NUMBERS, "xs from back to front",
     "xs[::-1]", ("xs[::1]", "sorted(xs)", "xs[-1]")),
    ("where_largest", NUMBERS, "the index of the largest of xs",
     "xs.index(max(xs))", ("max(xs)", "xs.index(min(xs))", "max(xs.index(x) for x in xs)")),
    ("times_in", FEW_VALUES, "how often {k} is in xs",
     "xs.count({k})", ("xs.index({k})", "{k} in xs", "len(xs)")),
    ("is_multiple", POSITIVE, "whether n is a multiple of {k}",
     "n % {k} == 0", ("n // {k} == 0", "n % {k}", "n % {k} == 1")),
    ("weighted", PAIR, "a plus {k} times b",
     "a + {k} * b", ("(a + {k}) * b", "{k} * a + b", "a + {k} + b")),
    ("distance", PAIR, "how far a is from b",
     "abs(a - b)", ("a - b", "b - a", "abs(a + b)")),
    ("power", WHOLE, "n to the power of {k}",
     "n ** {k}", ("n * {k}", "{k} ** n", "n + {k}")),
    ("digits", LONG_NUMBER, "how many digits n has",
     "len(str(n))", ("n % 10", "len(n)", "str(n)")),
    ("words", SENTENCE, "how many words s has",
     "len(s.split())", ("len(s)", "s.count(' ')", "s.split()")),
    ("repeat", WORD, "s written {k} times",
     "s * {k}", ("s + {k}", "s[:{k}]", "[s] * {k}")),
    ("head", WORD, "the first {k} letters of s",
     "s[:{k}]", ("s[{k}:]", "s[{k}]", "s[-{k}:]")),
    ("without", WORD, "s without the letter {c}",
     "s.replace('{c}', '')", ("s.replace('{c}', ' ')", "s.split('{c}')", "s.count('{c}')")),
)  # fmt: skip

FAMILIES = tuple(Family(*row) for row in _TABLE)

NAMES = (
    "total", "pick", "scan", "run", "make", "find", "get", "work",
    "go", "step", "take", "show", "turn", "use", "read", "keep",
)  # fmt: skip
"""Names that the asked function may have."""


def source(family: Family, name: str, body: str, constant: str | None) -> str:
    """The whole file: `def name(parameters):` and the body, with the constant filled in."""
    filled = _filled(body, constant)
    lead = "" if "return" in filled else "return "
    return f"def {name}({family.given.parameters}):\n    {lead}{filled}\n"


def instruction(family: Family, name: str, constant: str | None) -> str:
    """What the user asks, in one line."""
    return f"Write {name}({family.given.parameters}): {_filled(family.text, constant)}."


def _filled(text: str, constant: str | None) -> str:
    return text if constant is None else text.replace("{k}", constant).replace("{c}", constant)
