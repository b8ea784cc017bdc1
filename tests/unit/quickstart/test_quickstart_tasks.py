"""The quickstart's tasks: real scripts judge real solutions, and no task stands in two splits."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from examples.quickstart.families import FAMILIES, NAMES
from examples.quickstart.tasks import SPLITS, combinations, draw_tasks, make_task, task_id, write_task, write_tasks

COUNTS = {"train": 40, "val": 8, "test": 8}


def _task(key: str, name: str = "total", constant: str | None = None):
    return make_task(next(family for family in FAMILIES if family.key == key), name, constant)


def _environment() -> dict[str, str]:
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def _score(folder: Path, code: str | None) -> float:
    """The reward that tests/test.sh writes for a solution.py with this text (None: no file)."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "solution.py").unlink(missing_ok=True)
    if code is not None:
        (work / "solution.py").write_text(code, encoding="utf-8")
    subprocess.run(["sh", folder / "tests/test.sh", work, folder / "reward.txt"], check=True, timeout=30, env=_environment())
    return float((folder / "reward.txt").read_text(encoding="utf-8"))


@pytest.fixture
def squares(tmp_path: Path) -> Path:
    """The task `Write total(xs): the sum of the squares of xs.`"""
    write_task(tmp_path, _task("squares"))
    return tmp_path


def _check(folder: Path, code: str) -> str:
    workspace = folder / "environment"
    (workspace / "solution.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        ["sh", "check.sh"], cwd=workspace, capture_output=True, text=True, check=True, timeout=30, env=_environment()
    )
    return done.stdout


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.key)
def test_the_reference_scores_one_and_every_mistake_less(family, tmp_path: Path):
    task = make_task(family, "total", family.constants[0] if family.constants else None)
    write_task(tmp_path, task)
    assert _score(tmp_path, task.solution) == 1.0
    assert max(_score(tmp_path, mistake) for mistake in task.mistakes) < 1.0


def test_a_part_of_the_hidden_tests_earns_a_part_of_the_reward(squares: Path):
    task = _task("squares")
    wanted = {repr(args): want for args, want in task.hidden}
    first = task.hidden[0]
    code = f"def total(xs):\n    return {first[1]!r} if xs == {first[0][0]!r} else None\n"
    assert len(wanted) == 4
    assert _score(squares, code) == 0.25


@pytest.mark.parametrize(
    "code",
    [
        None,
        "",
        "def total(xs):\n    return",
        "def total(xs:\n",
        "total = 3\n",
        "import os\nos._exit(0)\n",
        "import sys\nsys.exit(0)\n",
        "print('1.0')\nraise SystemExit(0)\n",
        "def total(xs):\n    print(1.0)\n    exit(0)\n",
        "def total(xs):\n    open('/logs/verifier/reward.txt', 'w').write('1')\n",
        "def total(xs):\n    return 'x' * 10 ** 11\n",
        "def total(xs):\n    return total(xs)\n",
    ],
)
def test_what_does_not_answer_scores_zero(squares: Path, code: str | None):
    assert _score(squares, code) == 0.0


def test_an_endless_loop_scores_zero_within_its_limit(squares: Path):
    assert _score(squares, "def total(xs):\n    while True:\n        pass\n") == 0.0


def test_an_endless_loop_loses_only_the_cases_from_there_on(squares: Path):
    third = _task("squares").hidden[2][0][0]
    code = f"def total(xs):\n    while xs == {third!r}:\n        pass\n    return sum(x * x for x in xs)\n"
    assert _score(squares, code) == 0.5


def test_the_check_says_ok_or_names_the_first_failing_case(squares: Path):
    (xs,), want = _task("squares").visible[0]
    assert want == sum(x * x for x in xs)
    assert _check(squares, _task("squares").solution) == "ok"
    assert _check(squares, "def total(xs):\n    print('ok')\n    return 1234\n") == f"total({xs!r}) -> 1234, want {want}"
    assert _check(squares, "def other(xs):\n    return 1\n") == f"total({xs!r}) -> KeyError, want {want}"


def test_a_task_directory_is_what_harbor_reads(squares: Path):
    toml = tomllib.loads((squares / "task.toml").read_text(encoding="utf-8"))
    assert toml["version"] == "1.0"
    assert toml["agent"]["timeout_sec"] > 0 and toml["verifier"]["timeout_sec"] > 0
    assert (squares / "instruction.md").read_text(encoding="utf-8") == "Write total(xs): the sum of the squares of xs.\n"
    docker = (squares / "environment/Dockerfile").read_text(encoding="utf-8").split("\n")
    assert docker[:3] == ["FROM python:3.11-slim", "WORKDIR /app", "COPY check.sh check.py /app/"]


def test_the_splits_share_no_task_and_training_has_seen_every_name_and_constant():
    pools = {split: combinations(split) for split in SPLITS}
    ids = {split: {task_id(*one) for one in pool} for split, pool in pools.items()}
    assert (
        sum(map(len, ids.values()))
        == len(set().union(*ids.values()))
        == sum(len(NAMES) * max(1, len(f.constants)) for f in FAMILIES)
    )
    assert {name for _, name, _ in pools["train"]} == set(NAMES)
    assert {(f.key, c) for f, _, c in pools["train"]} == {(f.key, c) for f in FAMILIES for c in f.constants or (None,)}


def test_the_same_seed_writes_the_same_folders_and_another_seed_others(tmp_path: Path):
    one, two, other = (write_tasks(tmp_path / str(i), seed, COUNTS) for i, seed in enumerate((1, 1, 2)))
    assert one == two and one != other
    assert [len(one[split]) for split in SPLITS] == [40, 8, 8]
    assert not set(one["test"]) & set(other["train"])
    texts = [{p.relative_to(tmp_path / f): p.read_bytes() for p in (tmp_path / f).rglob("*") if p.is_file()} for f in ("0", "1")]
    assert texts[0] == texts[1]


def test_more_tasks_than_a_split_holds_are_refused():
    with pytest.raises(ValueError, match="val split holds"):
        draw_tasks("val", 10_000, 0)
