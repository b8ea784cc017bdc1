"""ClickHouse as a process of its own, without a run: for composed stacks and for looking at what was recorded."""
