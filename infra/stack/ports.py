"""Free ports for the parts of a stack, outside of the range from which the system takes ports for outgoing connections."""

from __future__ import annotations

import random
import socket

LOW, HIGH = 12_000, 30_000


def free_ports(count: int, host: str = "127.0.0.1", *others: str) -> list[int]:
    """`count` different ports that nobody has bound at any of the addresses. Raises OSError where none can be found."""
    hosts = {host, *others}
    found: list[int] = []
    for port in random.sample(range(LOW, HIGH), 50 * count):
        if len(found) == count:
            return found
        if all(is_free(each, port) for each in hosts):
            found.append(port)
    raise OSError(f"no {count} free ports between {LOW} and {HIGH} on {' and '.join(sorted(hosts))}")


def is_free(host: str, port: int) -> bool:
    """Whether it can be bound now."""
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
