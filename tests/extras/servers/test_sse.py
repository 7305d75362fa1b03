"""Parsing server-sent events from bytes."""

from __future__ import annotations

import pytest

from roseplay.extras.servers.sentences import RefusedError
from roseplay.extras.servers.sse import LONGEST_EVENT, EventParser


def events(*portions: bytes) -> list[bytes]:
    parser = EventParser()
    return [data for portion in portions for data in parser.feed(portion)] + parser.end()


def test_a_last_event_needs_no_line_feed() -> None:
    parser = EventParser()
    assert parser.feed(b": comment\n\ndata: 1\n\ndata: 2") == [b"1"]
    assert parser.end() == [b"2"]
    assert parser.end() == []


STREAM = (
    b"\xef\xbb\xbfdata: 1\n\n"
    b": comment\n\n"
    b"event: x\ndata: {\ndata:\ndata:}\nid: 7\n\n"
    b"data\ndata: 3 \xe2\x80\xa8\n\n"
    b"\n\n"
    b"data:4: 4\n\n"
    b'{"stray": 1}\n'
    b"other: 2\nretry: 5\n\n"
    b"data: 5"
)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_events_are_the_same_in_every_portion_and_with_every_end_of_a_line(end: bytes) -> None:
    whole = STREAM.replace(b"\n", end)
    expected = [b"1", b"{\n\n}", "3 \u2028".encode(), b"4: 4", b"5"]
    for size in (1, 2, 3, 7, len(whole)):
        parser = EventParser()
        portions = [whole[start : start + size] for start in range(0, len(whole), size)]
        data = [data for portion in portions for data in [*parser.feed(portion), *parser.feed(b"")]]
        assert data + parser.end() == expected
        assert parser.strays == b'{"stray": 1}\nother: 2\n'


def test_only_the_first_mark_of_byte_order_is_none_of_the_text() -> None:
    assert events(b"\xef\xbb", b"\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n") == [b"1"]


@pytest.mark.parametrize("portion", [b"data: x\n" * (1 << 14), b"data\n" * (1 << 14), b"x" * (1 << 17)])
def test_an_event_without_end_is_refused(portion: bytes) -> None:
    parser = EventParser()
    with pytest.raises(RefusedError, match="an event of more than 4 MiB"):
        for _ in range(1000):
            parser.feed(portion)


@pytest.mark.timeout(30)
def test_time_is_linear_in_the_bytes_and_what_is_kept_is_bounded() -> None:
    parser = EventParser()
    for _ in range(1 << 20):  # a byte at a time: quadratic code would copy half a terabyte
        parser.feed(b"x")
    parser.feed(b"\n\n")
    for _ in range(100):
        parser.feed(b"stray\n" * 10_000)
    assert LONGEST_EVENT <= len(parser.strays) < LONGEST_EVENT + 100
