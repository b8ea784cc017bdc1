"""Writes docs/config.md and docs/events.md."""

from pathlib import Path

from infra.reference.pages import config_page, events_page

DOCS = Path(__file__).resolve().parents[2] / "docs"

if __name__ == "__main__":
    (DOCS / "config.md").write_text(config_page(), encoding="utf-8")
    (DOCS / "events.md").write_text(events_page(), encoding="utf-8")
    print("wrote docs/config.md and docs/events.md")
