"""A config key that a text names to a person is one that the config has: a remedy that cannot be followed is none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

from gyre_engine.config.schema import Config
from tests.unit.house.test_packages import PACKAGES, ROOT

SECTIONS = {name: (get_args(kind) or (kind,))[0] for name, kind in get_type_hints(Config).items()}
KEYS = {f"{name}.{key.name}" for name, section in SECTIONS.items() for key in fields(section)}
PLACEHOLDER = "section.key"
SUFFIXES = {"json", "toml", "txt", "safetensors", "py", "sh"}
NAMED = re.compile(rf"(?<![\w./])(?:{'|'.join(SECTIONS)})\.[a-z]\w*\b(?![./]\w)")
TO_SET = re.compile(r"\b(?:set|raise|lower) ([a-z_]+\.[a-z]\w*)\b(?![./]\w)")


def keys_in(text: str) -> set[str]:
    """The keys that a text of several words names; names of files are none."""
    found = {*NAMED.findall(text), *TO_SET.findall(text)} if " " in text else set()
    return {key for key in found if key != PLACEHOLDER and key.split(".")[1] not in SUFFIXES}


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Every text in a file that is not a docstring or a comment, with its line; what is filled in stands as `{}`."""
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source if NAMED.search(source) or TO_SET.search(source) else "")
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            said |= {id(part) for part in node.values}
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.lineno, node.value


def test_every_key_that_a_text_names_is_in_the_config() -> None:
    found = {
        f"{file.relative_to(ROOT)}:{line}: {key}"
        for folder in PACKAGES
        for file in folder.glob("*.py")
        for line, text in texts(file)
        for key in keys_in(text) - KEYS
    }
    assert sorted(found) == []


def test_the_keys_of_a_text_are_found_and_names_of_files_are_not() -> None:
    """What the test above rests on; `kafka.ports` stands for what a text once named."""
    assert keys_in("stop it, or set kafka.ports = 0, see batch.groups.") == {"kafka.ports", "batch.groups"}
    assert keys_in("model.safetensors and gyre_engine.config.load of data.tar/x, set run.json") == set()
    assert keys_in("reward.json has two: set reward.weights") == {"reward.weights"}
    assert {"kafka.prefix", "models.key_env", "data.path"} < KEYS and "kafka.ports" not in KEYS
