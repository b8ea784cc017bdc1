"""What is asked: short questions whose answers can be checked, and the rule that judges each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from examples.smollm2.checker import Rule

LINES = (
    "The cat sat on the mat", "Rain fell on the quiet town", "We walked home after dark", "The soup was too hot to eat",
    "A small boat crossed the lake", "Birds sing before the sun rises", "She found a coin under the bed",
    "The old clock stopped at noon",
    "He painted the door dark green", "Snow covered the road to school", "The baker opens at six", "Two dogs ran across the field",
)  # fmt: skip
OPPOSITES = (
    ("hot", "cold"), ("up", "down"), ("big", "small"), ("day", "night"), ("open", "closed"), ("fast", "slow"), ("happy", "sad"),
    ("early", "late"), ("full", "empty"), ("old", "young"), ("left", "right"), ("wet", "dry"), ("hard", "soft"), ("light", "dark"),
    ("high", "low"), ("win", "lose"),
)  # fmt: skip
PLURALS = (
    ("mouse", "mice"), ("box", "boxes"), ("child", "children"), ("city", "cities"), ("foot", "feet"), ("leaf", "leaves"),
    ("man", "men"), ("tooth", "teeth"), ("baby", "babies"), ("goose", "geese"), ("knife", "knives"), ("bus", "buses"),
)  # fmt: skip
CAPITALS = (
    ("France", "Paris"), ("Italy", "Rome"), ("Germany", "Berlin"), ("Spain", "Madrid"), ("Japan", "Tokyo"), ("Egypt", "Cairo"),
    ("Russia", "Moscow"), ("China", "Beijing"), ("Greece", "Athens"), ("Austria", "Vienna"), ("Norway", "Oslo"), ("Cuba", "Havana"),
)  # fmt: skip
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Ida", "Jack")
CITIES = ("Paris", "Rome", "London", "Berlin", "Madrid", "Tokyo", "Cairo", "Dublin")
KINDS = {
    "colors": "red orange yellow green blue purple violet pink brown black white gray grey gold silver indigo cyan magenta turquoise "
    "teal maroon beige navy",
    "planets": "mercury venus earth mars jupiter saturn uranus neptune",
    "fruits": "apple apples banana bananas orange oranges pear pears grape grapes lemon lemons lime limes cherry cherries mango "
    "mangoes peach peaches plum plums kiwi kiwis melon watermelon pineapple strawberry strawberries blueberry blueberries raspberry "
    "raspberries apricot fig figs coconut papaya grapefruit",
    "farm animals": "cow cows pig pigs sheep goat goats horse horses chicken chickens hen hens duck ducks goose geese turkey turkeys "
    "donkey donkeys rooster",
}  # fmt: skip
ONE_WORD = "Answer with one word."


@dataclass(frozen=True, slots=True)
class Question:
    """One task: what is asked and how an answer is judged."""

    id: str
    asked: str
    rule: Rule


def questions() -> Iterator[Question]:
    """Every task that there is, in a fixed order."""
    for number, line in enumerate(LINES):
        asked = f"Repeat this line and say nothing else: {line}"
        yield _question(f"repeat-{number}", asked, kind="line", words=len(line.split()), want=line)
    for one, other in OPPOSITES:
        yield _word(f"opposite-{one}", f'What is the opposite of "{one}"? {ONE_WORD}', other)
    for one, many in PLURALS:
        yield _word(f"plural-{one}", f'What is the plural of "{one}"? {ONE_WORD}', many)
    for country, city in CAPITALS:
        yield _word(f"capital-{country.lower()}", f"What is the capital of {country}? {ONE_WORD}", city)
    for a in range(2, 8):
        for b in range(1, a):
            yield _word(f"sum-{a}-{b}", f"What is {a} + {b}? Answer with the number only.", str(a + b))
    yield from _lists()
    yield from _people()


def _question(name: str, asked: str, **rule: Any) -> Question:
    return Question(name, asked, {"asked": asked, **rule})


def _word(name: str, asked: str, want: str) -> Question:
    return _question(name, asked, kind="text", words=1, want=want)


def _lists() -> Iterator[Question]:
    for kind, names in KINDS.items():
        for count in (2, 3, 4):
            asked = f"List {count} {kind}, one per line."
            yield _question(
                f"list-{kind.replace(' ', '-')}-{count}", asked, kind="lines", count=count, among=sorted(names.split())
            )


def _people() -> Iterator[Question]:
    """A sentence about somebody, to be read in two ways."""
    for at, person in enumerate(PEOPLE):
        for step in (1, 3):
            city, age = CITIES[(at * step) % len(CITIES)], 20 + (at * 7 + step * 11) % 50
            said, name = f"{person} is {age} years old and lives in {city}.", f"{person.lower()}-{step}"
            yield _word(f"city-{name}", f"{said} In which city does {person} live? {ONE_WORD}", city)
            asked = f'Write JSON with the keys "name" and "age" and nothing else: {said}'
            yield _question(f"json-{name}", asked, kind="json", want={"name": person, "age": age})
