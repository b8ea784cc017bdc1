"""ClickHouse inside this process: chDB owns one folder, and ClickHouse's HTTP interface is served from it.

No package ships a current ClickHouse server, so the embedded default is chDB behind the protocol that every ClickHouse client
speaks. A real server is a config line (`clickhouse.url`); nothing else in Gyre knows which of the two answers.

`engine` owns the folder, `guard` says what a user may run, `execution` runs one statement, `request` and `app` are the HTTP side,
`service` starts and stops it.
"""
