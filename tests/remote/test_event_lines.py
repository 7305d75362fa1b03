"""Parsing server-sent events from bytes."""

from __future__ import annotations

from roseplay.remote.sse import EventLines


def test_a_last_event_needs_no_line_feed() -> None:
    lines = EventLines()
    assert lines.feed(b": comment\n\ndata: 1\n\ndata: 2") == [b"1"]
    assert lines.end() == [b"2"]
    assert lines.end() == []
