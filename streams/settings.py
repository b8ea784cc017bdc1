"""What the streams of one run are given."""

from __future__ import annotations

from dataclasses import dataclass

from gyre_engine.admission import AdmissionSettings
from gyre_engine.log.settings import KafkaSettings
from streams.registry import ALL


@dataclass(frozen=True, slots=True)
class StreamsSettings:
    """One worker.

    derivations:  which of ALL run here; only trajectory-trees may be shared out over several workers
    instance:     this worker's name in the consumer group: a restarted worker of the same name takes its partitions
    back at once
    stall_s:      a lag that stands for so long without progress ends the process
    session_s:    after so long without a sign of life the broker gives a worker's partitions to others (broker's
    limits: 6 to 1800)
    web_port:     Faust's own web server; None: none
    data:         a folder that Faust makes and nothing is kept in
    """

    kafka: KafkaSettings
    run: str
    admission: AdmissionSettings
    derivations: tuple[str, ...] = ALL
    instance: str = "0"
    stall_s: float = 60.0
    session_s: float = 10.0
    web_port: int | None = None
    data: str = "/tmp/gyre-faust"  # noqa: S108 - Faust makes a folder for its tables, of which there are none

    def __post_init__(self) -> None:
        unknown = [name for name in self.derivations if name not in ALL]
        if unknown or not self.derivations:
            raise ValueError(f"streams.derivations names {unknown or 'nothing'}; there are: {', '.join(ALL)}")

    @property
    def group(self) -> str:
        """The consumer group within the run: one for all derivations together, one for each other choice."""
        return "streams" if self.derivations == ALL else "streams-" + "-".join(self.derivations)

    @property
    def app_id(self) -> str:
        """Faust's app id, which is its group id (log-rules, 14)."""
        return f"{self.kafka.prefix}.{self.run}.{self.group}"
