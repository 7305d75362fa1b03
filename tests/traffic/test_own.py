"""Traffic from files: what is read, what is refused on which line, and that written traffic can be read again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseplay.traffic.own import (
    MAX_ARRIVAL_S,
    MAX_REQUESTS,
    OwnRequest,
    at_rate,
    from_first,
    own_workload,
    parse_rows,
    parse_traffic,
    to_jsonl,
)
from roseplay.traffic.prompts import TextPrompts

TWO = [OwnRequest(0.0, "What is a block?", 8), OwnRequest(1.5, 64, 4)]
CSV = b"arrival_s,user,prompt,prompt_tokens,answer_tokens\n"


def test_jsonl_is_read_by_arrival_and_counted_from_the_first() -> None:
    lines = (
        '{"arrival_s": 11.5, "prompt_tokens": 64, "answer_tokens": 4}\n\n'
        '{"arrival_s": 10, "prompt": "What is a block?", "answer_tokens": 8, "user": "x"}'
    )
    assert parse_traffic(lines.encode()) == TWO


def test_a_log_may_have_unix_times() -> None:
    lines = line(arrival_s=1_700_000_003) + line(arrival_s=1_700_000_000)
    assert [request.arrival_s for request in parse_traffic(lines)] == [0.0, 3.0]


def test_traffic_may_last_an_hour() -> None:
    assert from_first([OwnRequest(9.0 + MAX_ARRIVAL_S, 4, 1), OwnRequest(9.0, 4, 1)])[1].arrival_s == MAX_ARRIVAL_S
    with pytest.raises(ValueError, match="at most 3,600 s are possible"):
        from_first([OwnRequest(9.0, 4, 1), OwnRequest(9.1 + MAX_ARRIVAL_S, 4, 1)])


def test_csv_names_its_columns_and_a_quoted_prompt_may_have_lines() -> None:
    table = CSV + b'0,a,"one\ntwo, three",,8\n\n1.5,b,,64,4\n'
    assert parse_traffic(table) == [OwnRequest(0.0, "one\ntwo, three", 8), TWO[1]]


def test_tenants_and_priorities_are_read_written_and_sent() -> None:
    theirs = [OwnRequest(0.0, "a", 1, "one", -2), OwnRequest(1.0, 4, 1, None, 3), OwnRequest(2.0, 4, 1)]
    table = "arrival_s,prompt,prompt_tokens,answer_tokens,tenant,priority\n0,a,,1,one,-2\n1,,4,1,,3\n2,,4,1,,\n"
    assert parse_traffic(table.encode()) == theirs == parse_traffic(to_jsonl(theirs))
    assert [request.row() for request in theirs] == [[0.0, "a", 1, "one", -2], [1.0, 4, 1, None, 3], [2.0, 4, 1]]
    assert parse_rows([request.row() for request in theirs]) == theirs
    source = TextPrompts("a")
    sent, _ = own_workload(theirs, source.with_body, 50, room=100, count=len)
    assert [(one.params.tenant, one.params.priority) for one in sent] == [("one", -2), (None, 3), (None, 0)]


def test_half_of_a_surrogate_pair_does_not_reach_a_result_which_could_not_be_written() -> None:
    lines = rb'{"arrival_s": 0, "prompt": "a\ud83db", "answer_tokens": 1, "tenant": "\ud800"}'
    theirs = [OwnRequest(0.0, "a\ufffdb", 1, "\ufffd")]
    assert parse_traffic(lines) == theirs == parse_traffic(to_jsonl(theirs))
    turns = rb'[{"conversations": [{"from": "human", "value": "a\udfff"}, {"from": "gpt", "value": "b"}]}]'
    assert parse_traffic(turns)[0].prompt == "a\ufffd"


def test_conversations_arrive_at_a_seeded_rate() -> None:
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "x" * 80}]
    items = [{"id": 1, "conversations": turns}, {"conversations": []}, {"conversations": turns}]
    file = json.dumps(items * 50).encode()
    found = parse_traffic(file, rate_per_s=5, seed=3)
    assert len(found) == 100  # an empty conversation sends nothing
    assert {(request.prompt, request.answer_tokens) for request in found} == {("Why?", 20)}
    assert found == parse_traffic(file, rate_per_s=5, seed=3) != parse_traffic(file, rate_per_s=5, seed=4)
    assert 10 < found[-1].arrival_s < 40


def test_a_rate_takes_the_place_of_the_arrivals_in_a_file() -> None:
    lines = line(arrival_s=None) * 3
    with pytest.raises(ValueError, match="line 1, arrival_s is missing"):
        parse_traffic(lines)
    assert [r.arrival_s for r in at_rate(parse_traffic(lines, rate_per_s=2), 4)][-1] == pytest.approx(0.5)


def line(**changes: Any) -> bytes:
    """A line of JSONL; None leaves a field out."""
    row = {"arrival_s": 0, "prompt": "a", "answer_tokens": 1, **changes}
    return json.dumps({name: value for name, value in row.items() if value is not None}).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no requests"),
        (line() + b'{"arrival_s"', "line 2 is not JSON"),
        (line(prompt=None), "line 1 has no prompt"),
        (line() + line(arrival_s=3601), "3,601 s after the first"),
        (line(priority=1.5), "line 1, priority is 1.5: use an integer"),
        (line(tenant=7), "line 1, tenant is 7: use text of 1 to 256"),
        (b"\n" + line(arrival_s=-1), "line 2, arrival_s should be greater than or equal to 0, not -1"),
        (line(arrival_s=float("nan")), "line 1, arrival_s should be a finite number"),
        (line(prompt=7), "line 1, prompt should be a valid string, not 7"),
        (line(prompt=" "), "line 1, prompt"),
        (line(answer_tokens=1.5), "line 1, answer_tokens should be a valid integer, not 1.5"),
        (line(answer_tokens=True), "line 1, answer_tokens should be a valid integer, not True"),
        (CSV + b"0,a,hi,,2\nsoon,a,hi,,2", "line 3, arrival_s should be a valid number, not 'soon'"),
        (CSV + b'0,a,"two\nlines",,2\n1,a,hi,,none', "line 4, answer_tokens should be a valid integer, not 'none'"),
        (CSV + b'0,a,"two\nlines",,none', "line 2, answer_tokens should be a valid integer, not 'none'"),
        (CSV + b"0,a,hi", "line 2 has 3 cells, the header has 5"),
        (
            b"arrival_s,prompt,answer_tokens, prompt \n0,hi,2,ho",
            "line 1, the header, has the column prompt twice: keep",
        ),
        (line()[:-2] + b', "prompt": "b"}', "line 1: 'prompt' occurs twice in one object: keep one"),
        (b'[{"conversations": [], "conversations": []}]', "the file: 'conversations' occurs twice"),
        (b"time,text\n0,hi", "line 1, the header, has no column prompt or prompt_tokens, arrival_s, answer_tokens"),
        (CSV + b'0,a,"hi', "line 2 is not CSV"),
        (CSV + b"0,a,\xff,,2", "line 2 is not UTF-8"),
        (b'[{"conversations": [{"from": "human"}]}]', "item 1, conversations 1, value is missing"),
        (b'[{"turns": []}]', "item 1, conversations is missing"),
        (b"[\n1,\n", "line 3 is not JSON"),
        (b"[1]", "item 1 must be a JSON object, not 1"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
        (line() * (MAX_REQUESTS + 1), "more than"),
        (b" " * (9 * 2**20), "larger than"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_traffic(content)


@given(
    st.lists(
        st.builds(
            OwnRequest,
            st.floats(0, 3000).map(lambda value: round(value, 3)),
            st.integers(1, 5000) | st.text("aé\n\"', x", min_size=1).filter(str.strip),
            st.integers(1, 4096),
            st.none() | st.text("aé\n\"', x", min_size=1, max_size=256),
            st.integers(-(10**9), 10**9),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_written_is_read_again(requests: list[OwnRequest]) -> None:
    requests = from_first(requests)
    assert parse_traffic(to_jsonl(requests)) == requests
    assert parse_rows(json.loads(json.dumps(requests))) == requests


def test_a_workload_has_the_lengths_that_were_asked_for_and_names_what_does_not_fit() -> None:
    def make(room: int) -> tuple[list, list[int]]:
        return own_workload(TWO, TextPrompts, 500, seed=1, room=room, count=len)

    workload, lengths = make(68)
    assert (workload, lengths) == make(68)
    assert [(arrival.at_s, arrival.params.max_new_tokens) for arrival in workload] == [(0.0, 8), (1.5, 4)]
    assert workload[0].prompt == "What is a block?"
    assert lengths == [16, 64]
    assert all(0 <= token < 500 for token in workload[1].prompt)
    with pytest.raises(ValueError, match="request 2 of the traffic has 64 prompt tokens"):
        make(67)
