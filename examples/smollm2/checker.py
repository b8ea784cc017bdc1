"""Judges answer.txt against what a task asks for.

The generator copies this file into every task, followed by a line that calls `main` with that task's rule. As `check.py` in the
workspace the rule holds the form alone, and `ok` is printed or what is wrong with the form; as `tests/verify.py` it holds what is
right too, and a reward from 0 to 1 is written. Standard library only: it is started with `python3 -I -S` once a check.

A rule is a map with `asked`, the task's text. kind "text": `words` (at most so many), `want`. kind "line": `words`, `want` (word for
word). kind "lines": `count`, `among` (what may stand on them). kind "json": `want` (a map).
"""

import difflib
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

Rule = dict[str, Any]

NEARLY = 0.8
"""The right text with other case or punctuation."""
BURIED, BRIEF = 0.2, 0.6
"""The right word among others, and what is added for few of them: 0.6 / words."""
WRONG_FORM = 0.5
"""What is right of lists and JSON counts so much where the form is not what was asked for."""

_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_EDGE = " \t\r\n.,;:!?\"'`*"


def bare(text: str) -> str:
    """Lower case, without blanks and punctuation around it."""
    return text.strip(_EDGE).lower()


def lines_of(answer: str) -> list[str]:
    """What stands on the lines that are not empty."""
    return [line for line in answer.splitlines() if line.strip()]


def read_json(answer: str) -> tuple[Any, bool]:
    """(the value, or that of the first braces in it, or None; whether it is the whole answer)."""
    try:
        return json.loads(answer), True
    except (ValueError, RecursionError):
        found = re.search(r"\{[^{}]*\}", answer)
    try:
        return (json.loads(found[0]), False) if found else (None, False)
    except (ValueError, RecursionError):
        return None, False


def text_reward(answer: str, rule: Rule) -> float:
    """1 for the word itself, less for what holds it."""
    want = str(rule["want"])
    if answer.strip() == want:
        return 1.0
    if bare(answer) == bare(want):
        return NEARLY
    there = re.search(rf"(?<!\w){re.escape(bare(want))}(?!\w)", answer.lower())
    return BURIED + BRIEF / len(answer.split()) if there else 0.0


def line_reward(answer: str, rule: Rule) -> float:
    """1 for the line itself, else how much of it is there in its order, word by word, and little else (2 x matches / all words)."""
    want, said = ([bare(word) for word in text.split()] for text in (rule["want"], answer))
    alike = difflib.SequenceMatcher(a=want, b=said, autojunk=False).ratio()
    return 1.0 if answer.strip() == rule["want"] else NEARLY * alike


def lines_reward(answer: str, rule: Rule) -> float:
    """The share of lines with a name that is right and new; halved where there are too many or too few."""
    lines = lines_of(answer)
    names = {bare(_BULLET.sub("", line)) for line in lines[: rule["count"]]} & set(rule["among"])
    share: float = len(names) / rule["count"]
    return share * (1.0 if len(lines) == rule["count"] else WRONG_FORM)


def json_reward(answer: str, rule: Rule) -> float:
    """The share of keys with the right value; halved where other words or keys are there."""
    value, whole = read_json(answer)
    if not isinstance(value, dict):
        return 0.0
    want: dict[str, Any] = rule["want"]
    right: int = sum(type(value.get(key)) is type(known) and value[key] == known for key, known in want.items())
    return right / len(want) * (1.0 if whole and set(value) == set(want) else WRONG_FORM)


def reward(answer: str, rule: Rule) -> float:
    """From 0 to 1."""
    rewards: dict[str, Callable[[str, Rule], float]] = {
        "text": text_reward,
        "line": line_reward,
        "lines": lines_reward,
        "json": json_reward,
    }
    return rewards[rule["kind"]](answer, rule)


def objection(answer: str, rule: Rule) -> str:
    """What is wrong with the form, and the question once more, or `ok`."""
    wrong = {"text": _too_long, "line": _too_long, "lines": _other_lines, "json": _no_json}[rule["kind"]](answer, rule)
    return f"{wrong} {rule['asked']}" if wrong else "ok"


def _too_long(answer: str, rule: Rule) -> str:
    words = len(answer.split())
    return "That is no answer." if not words else "That is too long." if words > rule["words"] else ""


def _other_lines(answer: str, rule: Rule) -> str:
    found = len(lines_of(answer))
    return f"Write {rule['count']} lines, not {found}." if found != rule["count"] else ""


def _no_json(answer: str, rule: Rule) -> str:
    value, whole = read_json(answer)
    return "" if whole and isinstance(value, dict) else "That is not JSON alone."


def main(rule: Rule) -> int:
    """`check.py answer.txt` prints what is to be said; `verify.py answer.txt reward.txt` writes the reward."""
    answer = ""
    if os.path.isfile(sys.argv[1]):
        with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
            answer = file.read(1 << 16)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(f"{reward(answer, rule):g}\n")
    else:
        print(objection(answer, rule), end="")
    return 0
