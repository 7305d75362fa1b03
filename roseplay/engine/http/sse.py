"""Server-sent events: the data of each, out of bytes that arrive in any portions."""

from __future__ import annotations


class EventLines:
    """Collects bytes and returns the data of each event as it is complete.

    Only line feeds end a line: text within JSON may hold other characters that Unicode counts as line separators.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, portion: bytes) -> list[bytes]:
        """Returns the data of the events that this portion completes."""
        *lines, self._rest = (self._rest + portion).split(b"\n")
        return [data for line in lines if (data := _data(line)) is not None]

    def end(self) -> list[bytes]:
        """Returns the data of a last event that no line feed follows."""
        data, self._rest = _data(self._rest), b""
        return [] if data is None else [data]


def _data(line: bytes) -> bytes | None:
    return line[len(b"data:") :].strip() if line.startswith(b"data:") else None
