"""The broker, ClickHouse, the local stack, and `gyre` (the CLI)."""
