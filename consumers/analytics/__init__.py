"""Every topic of a run in ClickHouse: one table a topic, derived from the event types, and views that answer common questions.

`schema` derives the tables, `rows` makes rows of events, `ingest` follows the log, `views` are the questions, `query` asks them,
`embedded` is ClickHouse itself where no server is configured, `process` is the process that owns all of it.
"""
