"""Apache Kafka as a local process: one KRaft node without docker, its jars by jgo and pinned by checksum.

`Broker` prepares a data folder, runs the JVM and waits until it answers. `python -m infra.broker DATA_DIR --port N` runs one.
"""
