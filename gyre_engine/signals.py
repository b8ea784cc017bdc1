"""How a process without an event loop learns that it is to end."""

from __future__ import annotations

import signal
import threading


def stop_event() -> threading.Event:
    """Set by SIGTERM and SIGINT. Call it in the main thread."""
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    return ending
