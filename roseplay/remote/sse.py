"""Extracts the data of server-sent events from bytes that arrive in arbitrary portions."""

from __future__ import annotations

from roseplay.remote.sentences import RefusedError

LONGEST_LINE = 4 << 20  # bytes: room for a whole answer in one event


class EventLines:
    """Collects bytes and returns the data of each event once it is complete.

    Only line feeds end a line: text within JSON may contain other characters that Unicode counts as line separators.
    """

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, portion: bytes) -> list[bytes]:
        """Returns the data of the events that this portion completes; raises ``RefusedError`` if a line is too long."""
        head, *lines = portion.split(b"\n")
        self._rest += head
        if len(self._rest) > LONGEST_LINE:
            raise RefusedError(200, f"the server sent a line of more than {LONGEST_LINE >> 20} MiB")
        if not lines:
            return []
        complete = [bytes(self._rest), *lines[:-1]]
        self._rest = bytearray(lines[-1])
        return [data for line in complete if (data := _data(line)) is not None]

    def end(self) -> list[bytes]:
        """Returns the data of a last event that no line feed follows."""
        data, self._rest = _data(bytes(self._rest)), bytearray()
        return [] if data is None else [data]


def _data(line: bytes) -> bytes | None:
    return line[len(b"data:") :].strip() if line.startswith(b"data:") else None
