"""Reference pages that are generated from the code: docs/config.md and docs/events.md (`python -m infra.reference`)."""
