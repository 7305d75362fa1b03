"""Extracts the data of server-sent events from bytes that arrive in arbitrary portions."""

from __future__ import annotations

from roseplay.extras.servers.sentences import RefusedError

LONGEST_EVENT = 4 << 20  # bytes: room for a whole answer in one event
_FIELDS = (b"", b"data", b"event", b"id", b"retry")  # the first is a comment's


class EventParser:
    """Parses an event stream as WHATWG's HTML standard defines it, except that its end also ends the last event,
    and that events are returned without white space around them.

    A line ends with LF, CR or both; other characters that Unicode counts as line separators are text. A blank line ends
    an event, whose ``data`` lines are joined.

    Attributes:
        strays: lines that belong to no event stream, such as an error's JSON or HTML that was sent instead.
    """

    def __init__(self) -> None:
        self.strays = bytearray()
        self._line = bytearray()  # its beginning
        self._data: list[bytes] = []  # of the event so far
        self._size = 0
        self._after_cr = False
        self._begun = False

    def feed(self, portion: bytes) -> list[bytes]:
        """Returns the data of the events that this portion completes; raises ``RefusedError`` if one is too long."""
        if self._after_cr and portion:  # else CR, LF in two portions would be two ends
            portion, self._after_cr = portion.removeprefix(b"\n"), False
        if not portion:
            return []
        self._after_cr = portion.endswith(b"\r")
        head, *lines = portion.splitlines()
        self._line += head
        if lines or portion.endswith((b"\r", b"\n")):
            lines.insert(0, bytes(self._line))
            self._line = bytearray() if portion.endswith((b"\r", b"\n")) else bytearray(lines.pop())
        events = [data for line in lines if (data := self._take(line)) is not None]
        if self._size + len(self._line) > LONGEST_EVENT:
            raise RefusedError(200, f"the server sent an event of more than {LONGEST_EVENT >> 20} MiB")
        return events

    def end(self) -> list[bytes]:
        """Returns the data of a last event that no blank line follows."""
        line, self._line = bytes(self._line), bytearray()
        return [data for part in (line, b"") if (data := self._take(part)) is not None]

    def _take(self, line: bytes) -> bytes | None:
        """Take a line; returns the data of the event that it ends, without white space around it."""
        if not self._begun:
            line, self._begun = line.removeprefix(b"\xef\xbb\xbf"), True
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data).strip() if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(line)
        elif name not in _FIELDS and len(self.strays) < LONGEST_EVENT:
            self.strays += line + b"\n"
        return None
