"""The logs of a stack's processes, one file each, bounded in size and number.

`<name>.log` is what a process writes now; `<name>.log.1` (newest) to `<name>.log.3` are older. Files move one number up when a stack
starts and when a log has grown beyond its limit. A running process keeps its file open (for appending), so a log that is too long is
copied and emptied: lines that are written in that instant may be lost.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

logger = logging.getLogger(__name__)

LIMIT_BYTES = 16 << 20
KEPT = 3
TAIL_BYTES = 32 << 10
"""How much of a log's end is looked at for an error."""
TRACEBACK = "Traceback (most recent call last):"
LINE_LIMIT = 300
_CLASS = re.compile(r"^[\w.]+: ")


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs below `folder`. A process has at most `kept` older files of about `limit` bytes each."""

    folder: Path
    limit: int = LIMIT_BYTES
    kept: int = KEPT

    def file(self, name: str) -> Path:
        """Where a process writes its stdout and stderr."""
        return self.folder / f"{name}.log"

    def begin(self) -> None:
        """A stack starts, and nothing writes yet: all that stands here is of an earlier one."""
        self.folder.mkdir(exist_ok=True)
        for file in self._all():
            self._make_room(file)
            if file.exists():
                file.rename(_older(file, 1))

    def bound(self) -> None:
        """Put away what has grown beyond the limit."""
        for file in self.folder.glob("*.log"):
            if file.stat().st_size > self.limit:
                self._put_away(file)

    def tail(self, name: str, size: int) -> str:
        """The last `size` bytes of a process' log; empty where it has none."""
        try:
            with self.file(name).open("rb") as log:
                log.seek(-min(size, log.seek(0, os.SEEK_END)), os.SEEK_END)
                return log.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def last_error(self, name: str) -> str:
        """One line of the end of a process' log: the exception of the last traceback, or else the last line that is not indented;
        empty where it has none. What is too long is cut between words."""
        return shorten(self._last_line(name), LINE_LIMIT, placeholder=" ...")

    def last_words(self, name: str) -> str:
        """The same, whole, and without the name of the exception's class."""
        return _CLASS.sub("", self._last_line(name))

    def _last_line(self, name: str) -> str:
        lines = self.tail(name, TAIL_BYTES).splitlines()
        whole = [line for line in lines if line.strip() and not line[0].isspace()]
        traces = [at for at, line in enumerate(whole) if line.startswith(TRACEBACK)]
        at = traces[-1] + 1 if traces and traces[-1] + 1 < len(whole) else -1
        return whole[at] if whole else ""

    def _put_away(self, file: Path) -> None:
        self._make_room(file)
        try:
            shutil.copyfile(file, _older(file, 1))
        except OSError as error:  # a full disk: room is what it needs most
            logger.warning("%s was emptied without keeping what it held: %s", file, error)
        os.truncate(file, 0)

    def _all(self) -> set[Path]:
        """The logs of all processes of which something stands here."""
        return {path.with_name(path.name.partition(".log")[0] + ".log") for path in self.folder.glob("*.log*")}

    def _make_room(self, file: Path) -> None:
        """Free the number 1."""
        for number in range(self.kept, 0, -1):
            older = _older(file, number)
            if older.exists():
                older.unlink() if number == self.kept else older.rename(_older(file, number + 1))


def _older(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")
