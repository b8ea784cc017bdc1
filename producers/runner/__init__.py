"""The runner: dispatches queries as executions, runs a harness for each in a workspace of its own, keeps what it left behind."""
