"""SmolLM2's tasks: rewards worked out by hand, what the visible check says and what it does not know, directories that are tasks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.smollm2.checker import Rule, objection, reward
from examples.smollm2.families import Question, questions
from examples.smollm2.tasks import ensure_tasks, family_of, files, form, solution, split_of, write_tasks
from gyre_engine.tasks import read_task

EVERY = list(questions())
COLD: Rule = {"asked": "Opposite?", "kind": "text", "words": 1, "want": "cold"}
LINE: Rule = {"asked": "Repeat.", "kind": "line", "words": 4, "want": "The cat sat down"}
FRUITS: Rule = {"asked": "Fruits.", "kind": "lines", "count": 2, "among": ["apple", "fig", "pear"]}
ANNA: Rule = {"asked": "JSON.", "kind": "json", "want": {"name": "Anna", "age": 31}}


@pytest.mark.parametrize(
    ("rule", "answer", "want"),
    [
        (COLD, "cold", 1.0),
        (COLD, " cold\n", 1.0),
        (COLD, "Cold.", 0.8),
        (COLD, "It is cold.", 0.4),  # 0.2 + 0.6 / 3 words
        (COLD, "The opposite of hot is cold", 0.3),  # 0.2 + 0.6 / 6
        (COLD, "colder", 0.0),
        (COLD, "warm", 0.0),
        (COLD, "", 0.0),
        (LINE, "The cat sat down", 1.0),
        (LINE, "the cat sat down.", 0.8),
        (LINE, "The cat ran", 0.8 * 4 / 7),  # 2 words alike of 4 + 3
        (LINE, "Dogs", 0.0),
        (FRUITS, "apple\nfig", 1.0),
        (FRUITS, "1. Apple\n\n2. Pear.", 1.0),
        (FRUITS, "- apple\n- apple", 0.5),
        (FRUITS, "apple\nfig\npear", 0.5),
        (FRUITS, "apple", 0.25),
        (FRUITS, "Here are two:\napple\nfig", 0.25),
        (ANNA, '{"name": "Anna", "age": 31}', 1.0),
        (ANNA, '{"age": 31,\n "name": "Anna"}\n', 1.0),
        (ANNA, '{"name": "Anna", "age": "31"}', 0.5),
        (ANNA, '```json\n{"name": "Anna", "age": 31}\n```', 0.5),
        (ANNA, '{"name": "Anna", "age": 31, "city": "Rome"}', 0.5),
        (ANNA, 'So: {"name": "Ben", "age": 31}', 0.25),
        (ANNA, '["Anna", 31]', 0.0),
        (ANNA, "{name: Anna}", 0.0),
        (ANNA, "[" * 100_000, 0.0),
    ],
)
def test_a_reward_is_what_the_rule_says(rule: Rule, answer: str, want: float) -> None:
    assert reward(answer, rule) == pytest.approx(want)


@pytest.mark.parametrize(
    ("rule", "answer", "said"),
    [
        (COLD, "warm", "ok"),
        (COLD, "It is cold.", "That is too long. Opposite?"),
        (COLD, " \n", "That is no answer. Opposite?"),
        (LINE, "The cat sat down again", "That is too long. Repeat."),
        (FRUITS, "rock\nstone", "ok"),
        (FRUITS, "apple", "Write 2 lines, not 1. Fruits."),
        (ANNA, '{"name": "Ben"}', "ok"),
        (ANNA, 'So: {"name": "Anna", "age": 31}', "That is not JSON alone. JSON."),
        (ANNA, "[31]", "That is not JSON alone. JSON."),
    ],
)
def test_the_visible_check_speaks_of_the_form_alone(rule: Rule, answer: str, said: str) -> None:
    assert objection(answer, form(rule)) == said


@pytest.mark.parametrize("question", EVERY, ids=lambda question: question.id)
def test_the_reference_solution_earns_everything(question: Question) -> None:
    assert reward(solution(question.rule), question.rule) == 1.0
    assert objection(solution(question.rule), form(question.rule)) == "ok"


def test_names_are_unique_and_both_splits_hold_every_family_but_for_a_few() -> None:
    assert len({question.id for question in EVERY}) == len(EVERY) > 100
    train = Counter(family_of(question) for question in EVERY if split_of(question) == "train")
    assert set(train) == {"repeat", "opposite", "plural", "capital", "sum", "list", "city", "json"}
    assert min(train.values()) >= 7
    assert 10 <= sum(split_of(question) == "test" for question in EVERY) <= len(EVERY) // 3


def test_what_is_right_stands_in_no_file_that_the_agent_sees() -> None:
    question = next(question for question in EVERY if question.id == "capital-france")
    seen = [text for path, text in files(question).items() if path.startswith(("environment/", "instruction"))]
    assert not any("Paris" in text for text in seen)
    assert "Paris" in files(question)["tests/verify.py"]


def test_the_directories_are_tasks_and_their_programs_judge(tmp_path: Path) -> None:
    written = write_tasks(tmp_path)
    assert written == {split: len(list((tmp_path / split).iterdir())) for split in ("train", "test")}
    folder = next(tmp_path.glob("*/capital-france"))
    assert read_task(folder).instruction.strip() == "What is the capital of France? Answer with one word."
    answer, given = tmp_path / "answer.txt", tmp_path / "reward.txt"
    answer.write_text("It is Paris.")
    run = [sys.executable, "-I", "-S"]
    said = subprocess.run([*run, folder / "environment" / "check.py", answer], capture_output=True, text=True, check=True)
    assert said.stdout == "That is too long. What is the capital of France? Answer with one word."
    subprocess.run([*run, folder / "tests" / "verify.py", answer, given], check=True)
    assert float(given.read_text()) == pytest.approx(0.4)
    answer.unlink()
    subprocess.run([*run, folder / "tests" / "verify.py", answer, given], check=True)
    assert float(given.read_text()) == 0.0


def test_tasks_are_written_once_and_again_when_they_are_others(tmp_path: Path) -> None:
    counts = ensure_tasks(tmp_path / "tasks")
    one = next((tmp_path / "tasks" / "train").iterdir()) / "instruction.md"
    one.write_text("touched")
    assert ensure_tasks(tmp_path / "tasks") == counts
    assert one.read_text() == "touched"
    (tmp_path / "tasks" / "made-from").write_text("other")
    ensure_tasks(tmp_path / "tasks")
    assert one.read_text() != "touched"
