"""Writes the questions as Harbor task directories: `python -m examples.smollm2.tasks OUT`.

Which split a question belongs to follows from its name (a hash): one in five is for tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from examples.smollm2.checker import Rule
from examples.smollm2.families import Question, questions

HERE: Final = Path(__file__).resolve().parent
MARK: Final = "made-from"
ANSWER: Final = "answer.txt"

_TOML = """version = "1.0"

[metadata]
difficulty = "easy"
category = "question-answering"
tags = ["smollm2", "{family}"]

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 60.0
"""
_DOCKERFILE = "FROM python:3.11-slim\nWORKDIR /app\nCOPY check.sh check.py /app/\n"
_CHECK = f"#!/bin/sh\n# `ok`, or what is wrong with the form of the answer.\nexec python3 -I -S check.py {ANSWER}\n"
_TEST = f"""#!/bin/sh
# Writes the reward of /app/{ANSWER}.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
exec python3 -I -S "$here/verify.py" "${{1:-/app}}/{ANSWER}" "${{2:-/logs/verifier/reward.txt}}"
"""
_SOLVE = f"#!/bin/sh\ncat > {ANSWER} <<'END'\n{{answer}}\nEND\n"
_FORM: Final = ("asked", "kind", "words", "count")
"""What the visible check knows of a rule."""


def family_of(question: Question) -> str:
    return question.id.partition("-")[0]


def split_of(question: Question) -> str:
    """train, or test for a fifth."""
    return "test" if int.from_bytes(hashlib.sha256(question.id.encode()).digest()[:4]) % 5 == 0 else "train"


def solution(rule: Rule) -> str:
    """An answer that earns 1."""
    if rule["kind"] == "lines":
        return "\n".join(rule["among"][: rule["count"]])
    return json.dumps(rule["want"]) if rule["kind"] == "json" else str(rule["want"])


def form(rule: Rule) -> Rule:
    """The rule without what is right."""
    return {key: rule[key] for key in _FORM if key in rule}


def program(rule: Rule) -> str:
    """The text of check.py or verify.py."""
    return f"{(HERE / 'checker.py').read_text(encoding='utf-8')}\n\nsys.exit(main({rule!r}))\n"


def files(question: Question) -> Mapping[str, str]:
    """The task directory: relative path -> text."""
    return {
        "task.toml": _TOML.format(family=family_of(question)),
        "instruction.md": question.asked + "\n",
        "environment/Dockerfile": _DOCKERFILE,
        "environment/check.sh": _CHECK,
        "environment/check.py": program(form(question.rule)),
        "tests/test.sh": _TEST,
        "tests/verify.py": program(question.rule),
        "solution/solve.sh": _SOLVE.format(answer=solution(question.rule)),
    }


def write_tasks(root: Path) -> dict[str, int]:
    """Writes root/train and root/test; how many each holds."""
    written = {"train": 0, "test": 0}
    for question in questions():
        split = split_of(question)
        written[split] += 1
        for relative, text in files(question).items():
            path = root / split / question.id / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    return written


def ensure_tasks(folder: Path) -> dict[str, int]:
    """Write the tasks unless these very ones stand there; how many each split holds. The folder appears whole."""
    sources = (HERE / name for name in ("checker.py", "families.py", "tasks.py"))
    stamp = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    mark = folder / MARK
    if not mark.exists() or mark.read_text(encoding="utf-8") != stamp:
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            fresh = Path(made, "tasks")
            write_tasks(fresh)
            (fresh / MARK).write_text(stamp, encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            fresh.rename(folder)
    return {split: sum(1 for _ in (folder / split).iterdir()) for split in ("train", "test")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes SmolLM2's tasks.")
    parser.add_argument("out", type=Path, help="folder for train/ and test/")
    written = write_tasks(parser.parse_args().out)
    print(", ".join(f"{count} {split}" for split, count in written.items()), "tasks")


if __name__ == "__main__":
    main()
