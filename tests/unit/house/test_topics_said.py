"""What a module says that it reads is what its code reads, where the code has it as a constant."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import pytest

from consumers.dashboard.view import TOPICS as SHOWN
from consumers.replay.derive import Sources
from consumers.reporting.process import Reporting
from consumers.scheduler.process import Scheduler
from consumers.scoring.scoring import Scoring
from consumers.trainer.board import CORE_TOPICS, LEDGER_TOPICS
from gyre_engine.events import Recorded
from gyre_engine.log.memory import MemoryLog
from gyre_engine.log.names import RUNS
from gyre_engine.log.port import TOPICS, Raw
from producers.proxy.feed import TOPICS as FED
from producers.runner.runner import FOLLOWED
from streams.admission import AdmissionStream
from streams.derivation import Derivation
from streams.trajectory_trees import TrajectoryTrees
from streams.water_level import WaterLevelStream

STREAMS = (TrajectoryTrees, AdmissionStream, WaterLevelStream)
PARTS = ("reads", "writes", "promises")


def said(module: str, part: str) -> str:
    """What stands behind `part` in the module's docstring, to the next part or the end of the paragraph."""
    text = importlib.import_module(module).__doc__ or ""
    found = re.search(rf"^{part} +(.*?)(?=^(?:{'|'.join(PARTS)}) |\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert found, f"{module} does not say what it {part}"
    return found[1]


def topics_in(text: str) -> set[str]:
    """The topics named in `text`, apart from what stands in parentheses."""
    return set(re.findall(r"[a-z-]+", re.sub(r"\([^)]*\)", "", text))) & {*TOPICS, RUNS}


def needed(stream: type[Derivation]) -> set[str]:
    """Its sources, and where its decisive events stand: they are read at a start."""
    return {*stream.sources, *(kind.TOPIC for kind in stream.decisive)}


EXACT = {
    **{stream.__module__: needed(stream) for stream in STREAMS},
    "streams.process": set().union(*(needed(stream) for stream in STREAMS)),
    "consumers.scheduler.process": {*Scheduler.topics},
    "consumers.reporting.process": {*Reporting.topics},
    "consumers.trainer.process": {*LEDGER_TOPICS, *CORE_TOPICS},
    "consumers.trainer.core": {*CORE_TOPICS},
    "consumers.dashboard": {*SHOWN},
    "producers.proxy.feed": {*FED},
}
AT_LEAST = {
    "consumers.scoring.scoring": {*Scoring.topics},
    "consumers.scoring.process": {*Scoring.topics},
    "producers.runner.process": {*FOLLOWED},
    "producers.runner.runner": {*FOLLOWED},
    "producers.proxy.process": {*FED},
}


@pytest.mark.parametrize("module", EXACT)
def test_it_says_what_it_reads(module: str) -> None:
    assert topics_in(said(module, "reads")) == EXACT[module]


@pytest.mark.parametrize("module", AT_LEAST)
def test_it_says_at_least_what_it_follows(module: str) -> None:
    """Beside what is followed these read once at a start."""
    assert topics_in(said(module, "reads")) >= AT_LEAST[module]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_says_where_its_decisive_events_go(stream: type[Derivation]) -> None:
    assert topics_in(said(stream.__module__, "writes")) >= {kind.TOPIC for kind in stream.decisive} | {"dead-letters"}


def test_the_streams_process_writes_what_its_streams_write() -> None:
    written = set().union(*(topics_in(said(stream.__module__, "writes")) for stream in STREAMS))
    assert topics_in(said("streams.process", "writes")) == written


class Listening(MemoryLog):
    """Notes which topics are read."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: set[str] = set()

    def read(self, topic: str, **given: object) -> Iterator[Recorded]:
        self.heard.add(topic)
        return super().read(topic, **given)  # type: ignore[arg-type]

    def read_raw(self, topic: str, **given: object) -> Iterator[Raw]:
        self.heard.add(topic)
        return super().read_raw(topic, **given)  # type: ignore[arg-type]


def test_a_replay_says_what_it_verifies_from() -> None:
    log = Listening()
    Sources.read(log)
    _, verified = said("consumers.replay.process", "reads").split("; to verify also")
    assert topics_in(verified) == log.heard
