"""TensorBoard: the figures of every step in one event file, written anew at each start, so that no point is lost or doubled.

A TensorBoard that is looking drops the points of the file before when it meets the new one's start (a session log at step 0).
"""

from __future__ import annotations

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from gyre_engine.events.reports import StepReported
from gyre_engine.reports.figures import figures

PATTERN = "events.out.tfevents.*.gyre"
FILE_VERSION = "brain.Event:2"


class TensorBoardFile:
    """Writes to a file of its own in `folder`; the files of earlier lives go when the first report comes."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: RecordWriter | None = None

    def show(self, report: StepReported) -> None:
        """A point for each figure, at the time of the commit; on disk when this returns."""
        at = report.committed_at / 1e6
        if self._writer is None:
            self._writer = self._begin(report.opened_at / 1e6)
        values = [Summary.Value(tag=figure.tag, simple_value=figure.value) for figure in figures(report)]
        self._put(self._writer, Event(wall_time=at, step=report.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _begin(self, at: float) -> RecordWriter:
        """TensorBoard reads files in the order of their names: the present time stands in the new one's."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob(PATTERN):
            old.unlink()
        writer = RecordWriter((self._folder / PATTERN.replace("*", f"{time.time_ns():020d}")).open("wb"))
        self._put(writer, Event(wall_time=at, file_version=FILE_VERSION))
        self._put(writer, Event(wall_time=at, step=0, session_log=SessionLog(status=SessionLog.START)))
        return writer

    def _put(self, writer: RecordWriter, event: Event) -> None:
        writer.write(event.SerializeToString())
