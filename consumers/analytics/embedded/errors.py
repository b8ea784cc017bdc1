"""ClickHouse's errors as it sends them: a number, a text that repeats the number, an HTTP status."""

from __future__ import annotations

import re

BAD_REQUEST = (
    6,
    8,
    10,
    15,
    16,
    25,
    26,
    27,
    36,
    38,
    41,
    43,
    44,
    53,
    57,
    62,
    69,
    70,
    72,
    117,
    130,
    321,
    386,
    427,
    456,
    457,
    675,
    676,
)
NOT_FOUND = (46, 47, 50, 56, 60, 63, 73, 81, 115, 336, 511)
FORBIDDEN = (164, 192, 193, 497, 516)
OTHER_STATUS = {48: 501, 76: 503, 159: 408, 160: 408, 162: 413, 203: 503, 209: 503, 210: 503, 241: 500}
_STATUS = {
    **dict.fromkeys(BAD_REQUEST, 400),
    **dict.fromkeys(NOT_FOUND, 404),
    **dict.fromkeys(FORBIDDEN, 403),
    **OTHER_STATUS,
}
_PREFIX = re.compile(r"^(?:Code: \d+\. DB::Exception: )+(?=Code: \d+\. DB::Exception: )")
_VERSION = re.compile(r"\s*\(version [^)]*\)\.?(?=\s*\()")


class ClickHouseError(Exception):
    """An error with ClickHouse's code; `str()` is the text that a server would send, without its version."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return _STATUS.get(self.code, 500)


def refusal(code: int, name: str, text: str) -> ClickHouseError:
    """An error of this side, in the engine's form: `Code: 497. DB::Exception: ... (ACCESS_DENIED)`."""
    return ClickHouseError(code, f"Code: {code}. DB::Exception: {text}. ({name})")


def denied(text: str) -> ClickHouseError:
    """ACCESS_DENIED."""
    return refusal(497, "ACCESS_DENIED", text)


def read_only(text: str) -> ClickHouseError:
    """READONLY."""
    return refusal(164, "READONLY", text)


def from_engine(error: Exception) -> ClickHouseError:
    """What chDB raised, as a ClickHouseError: repeated prefixes and inner versions are dropped."""
    if isinstance(error, ClickHouseError):
        return error
    text = str(error).strip()
    start = text.find("Code: ")
    if start < 0:
        return refusal(1002, "UNKNOWN_EXCEPTION", text or type(error).__name__)
    text = _VERSION.sub("", _PREFIX.sub("", text[start:]))
    text = re.sub(r"(\([A-Z_0-9]+\))(?:\.? \1)+$", r"\1", text)
    text = re.sub(r": In scope SELECT formatQuery\(.*(?=\. \([A-Z_0-9]+\)$)", "", text, flags=re.DOTALL)
    match = re.match(r"Code: (\d+)", text)
    return ClickHouseError(int(match[1]) if match else 1002, text)
