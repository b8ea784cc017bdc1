"""The generated pages are those that the code gives now."""

from pathlib import Path

import pytest

from infra.reference.metrics import metrics_page
from infra.reference.pages import cells_page, config_page, events_page

DOCS = Path(__file__).resolve().parents[3] / "docs"


PAGES = [("config.md", config_page), ("events.md", events_page), ("cells.md", cells_page), ("metrics.md", metrics_page)]


@pytest.mark.parametrize(("name", "page"), PAGES)
def test_the_page_is_current(name: str, page: object) -> None:
    assert callable(page)
    assert (DOCS / name).read_text(encoding="utf-8") == page(), "run `python -m infra.reference`"
