"""A scorer by its name, with errors that say what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.scoring.loading import ScorerError, load_scorer

GOOD = """
class Mine:
    name, version = "mine", "2"
    async def score(self, execution): ...
class Nameless:
    async def score(self, execution): ...
class Blocking:
    name, version = "b", "1"
    def score(self, execution): ...
class Needs:
    name, version = "n", "1"
    def __init__(self, what): ...
    async def score(self, execution): ...
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gyre_test_scorers.py").write_text(GOOD)
    (tmp_path / "gyre_test_broken.py").write_text("import no_such_package_here\n")
    (tmp_path / "gyre_test_raises.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_scorer_is_found_in_the_current_folder() -> None:
    scorer = load_scorer("gyre_test_scorers:Mine")
    assert (scorer.name, scorer.version) == ("mine", "2")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mine", "write MODULE:CLASS"),
        ("gyre_test_nowhere:Mine", "no module 'gyre_test_nowhere'"),
        ("gyre_test_broken:Mine", "needs 'no_such_package_here', which is not installed"),
        ("gyre_test_raises:Mine", "cannot be imported: ZeroDivisionError"),
        ("gyre_test_scorers:Mein", "no class Mein; it has: Blocking, Mine, Nameless, Needs"),
        ("gyre_test_scorers:Blocking", "needs `async def score"),
        ("gyre_test_scorers:Needs", "cannot be made without arguments"),
        ("gyre_test_scorers:Nameless", "needs a class attribute name"),
    ],
)
def test_errors_say_what_is_missing(spec: str, says: str) -> None:
    with pytest.raises(ScorerError, match=says):
        load_scorer(spec)
