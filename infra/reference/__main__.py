"""Writes the pages of docs/ that follow from the code."""

from pathlib import Path

from infra.reference.metrics import metrics_page
from infra.reference.pages import cells_page, config_page, events_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"config.md": config_page, "events.md": events_page, "cells.md": cells_page, "metrics.md": metrics_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
    print(f"wrote {', '.join(f'docs/{name}' for name in PAGES)}")
