"""Names and places on the log: a topic's full name, a record's key, the partition that a key belongs to."""

from __future__ import annotations

import re

from gyre_engine.events import Event
from gyre_engine.log.port import SINGLE_PARTITION

RUNS = "runs"
"""The one topic of all runs. It is compacted, so its null values are tombstones and no bad events."""

_WORD = re.compile(r"[A-Za-z0-9_-]{1,100}")


def require_word(what: str, name: str) -> None:
    """Raise ValueError where a run or a prefix is no plain word: a dot in it would make two runs' topics look alike."""
    if not _WORD.fullmatch(name):
        raise ValueError(f"{what} {name!r}: use letters, digits, - and _ (at most 100), no dots")


def full_name(prefix: str, run: str, topic: str) -> str:
    """`<prefix>.<run>.<topic>`; `<prefix>.runs` for the topic of all runs (log-rules, 14)."""
    return f"{prefix}.{topic}" if topic == RUNS else f"{prefix}.{run}.{topic}"


def record_key(event: Event, run: str) -> bytes:
    """A record's key. On `runs` it also names the type: compaction then keeps a run's start beside its end."""
    key = event.key(run)
    return (f"{key}/{event.TYPE}" if event.TOPIC == RUNS else key).encode()


def partitions_of(topic: str, partitions: int) -> int:
    """How many partitions `topic` is declared with, where execution-keyed topics have `partitions`."""
    return 1 if topic in SINGLE_PARTITION else partitions


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of `key`: what Java's default partitioner, aiokafka and librdkafka's `murmur2_random` choose."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2 (32 bits, unsigned) with the seed that Kafka uses, 0x9747b28c."""
    mix, mask = 0x5BD1E995, 0xFFFFFFFF
    whole = len(data) & ~3
    state = 0x9747B28C ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * mix & mask
        word = (word ^ (word >> 24)) * mix & mask
        state = (state * mix & mask) ^ word
    if whole < len(data):
        state = (state ^ int.from_bytes(data[whole:], "little")) * mix & mask
    state = (state ^ (state >> 13)) * mix & mask
    return state ^ (state >> 15)
