"""Exports of a recording: a trace in Chrome's format, a table of tokens, a report."""

from __future__ import annotations

import csv
import errno
import io
import json
import re
import statistics
import tempfile
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from roseplay.config import SamplingParams
from roseplay.play.page_host import PageHost
from roseplay.play.playground import Playground
from roseplay.play.replay_server import ReplayServer
from roseplay.play.web.recording_routes import add_recording_routes
from roseplay.recording import charts, exports
from roseplay.recording.command import main
from roseplay.recording.initial_state import InitialState
from roseplay.recording.reader import Recording, demo_path, parse
from roseplay.recording.recorded_run import RecordedRun
from roseplay.recording.run_statistics import run_statistics
from roseplay.traffic.environment import environment
from roseplay.traffic.own import parse_traffic
from tests.play.fake_engine import WORDS, FakeEngine

TAB = "tab-of-a-test"


@pytest.fixture
def lines(engine: FakeEngine, playground: Playground) -> list[bytes]:
    """Two lanes and a burst, a knob change, a preemption, a stopped request and one that has not ended."""
    ids = playground.chats.send("What? <b>", lanes=[1, 2], tab_id=TAB, params=SamplingParams(max_new_tokens=12))
    play(engine, playground, 4)
    playground.set_knobs({"prefill_max_tokens": 64, "chunked_prefill": False})
    playground.traffic.burst(size=3, kind="equal", max_new_tokens=4, seed=3, tab_id=TAB)
    play(engine, playground, 3)
    engine.step()
    preempt(engine, ids[0])
    playground.tick()
    play(engine, playground, 8)
    playground.chats.send("And?", lanes=[1], tab_id=TAB, params=SamplingParams(max_new_tokens=100))
    playground.chats.ask("a program", SamplingParams(max_new_tokens=50))
    play(engine, playground, 2)
    playground.stop(tab_id=TAB, lane=1)
    play(engine, playground, 1)
    return list(playground.recording(TAB))


def play(engine: FakeEngine, playground: Playground, steps: int) -> None:
    for _ in range(steps):
        engine.step()
        playground.tick()


def table(kind: str, lines: list[bytes]) -> list[dict[str, str]]:
    """The rows of an export that is CSV."""
    return list(csv.DictReader(io.StringIO(exports.export(kind, lines).decode(), newline="")))


def changed(lines: list[bytes], change: Callable[[list[dict[str, Any]]], object]) -> list[bytes]:
    """The recording after a change of its header and frames, which are parsed."""
    document = [json.loads(line) for line in lines]
    change(document)
    return [json.dumps(part).encode() + b"\n" for part in document]


def preempt(engine: FakeEngine, request_id: int) -> None:
    """Record that the newest step preempted a request, and remove the request from that step."""
    _, (event,) = engine.telemetry.since(engine.telemetry.next_cursor - 1)
    event.record.preempted.append(request_id)
    event.record.entries[:] = [entry for entry in event.record.entries if entry.request_id != request_id]


@pytest.fixture
def recording(lines: list[bytes]) -> Recording:
    return parse(lines, "run.jsonl")


# The trace


def check_trace(document: dict[str, Any]) -> None:
    """Check what the trace-event format requires of a file in JSON object format: keys by phase, nesting, order."""
    keys = {"M": {"name", "pid", "tid", "args"}, "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"}}
    keys |= {"i": {"name", "pid", "tid", "ts", "s"}, "C": {"name", "pid", "ts", "args"}}
    assert isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in ("ms", "ns")
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert keys[event["ph"]] <= set(event), event
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            continue
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        tracks[event["pid"], event["tid"]].append(event)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int) for value in event["args"].values())
    for track in tracks.values():
        assert [event["ts"] for event in track] == sorted(event["ts"] for event in track)
        slices = [event for event in track if event["ph"] == "X"]
        for before, after in pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"], "slices of a track must not overlap"


@pytest.fixture
def trace(lines: list[bytes]) -> dict[str, Any]:
    return json.loads(exports.export("trace", lines))


def named(trace: dict[str, Any], name: str, **where: Any) -> list[dict[str, Any]]:
    found = [event for event in trace["traceEvents"] if event["name"].startswith(name)]
    return [event for event in found if all(event.get(key) == value for key, value in where.items())]


def test_the_trace_is_in_the_format_and_has_all_steps_tokens_and_marks(
    trace: dict[str, Any], recording: Recording
) -> None:
    check_trace(trace)
    run = RecordedRun(recording)
    steps = named(trace, "step ", ph="X", pid=1)
    assert len(steps) == len(run.steps) >= 15
    assert [(s["ts"], s["args"]["prompt_tokens"]) for s in steps] == [
        (round((s.t0 - run.start) * 1000), s.prompt_tokens) for s in run.steps
    ]
    for name in ("tokens per step", "requests", "KV blocks"):
        assert len(named(trace, name, ph="C")) == len(run.steps)
    assert all(sum(event["args"].values()) == 448 for event in named(trace, "KV blocks"))
    tracks = {e["tid"]: e["args"]["name"] for e in named(trace, "thread_name", pid=2)}
    assert list(tracks.values())[:3] == ["lane 1 #1", "lane 2 #2", "burst 1 #3"]
    assert len(tracks) == len(run.requests) == 7
    assert len(named(trace, "queued", pid=2)) == 7
    begun = [request for request in run.requests.values() if request.first is not None]
    assert len(named(trace, "first token", ph="i")) == len(begun) >= 5
    assert {event["args"]["reason"] for event in named(trace, "finished", ph="i")} == {"length", "abort"}
    assert len(named(trace, "preempted", ph="i")) == len(named(trace, "resumed", ph="i")) == 1
    assert named(trace, "waiting again")[0]["dur"] > 0
    (knob,) = named(trace, "knob:", ph="i", s="g")
    assert knob["args"]["prefill_max_tokens"] == {"old": None, "new": 64}
    assert "Prefill budget ∞ → 64" in knob["name"]
    assert "Chunked prefill on → off" in knob["name"]


def test_a_slice_knows_its_token(trace: dict[str, Any]) -> None:
    mine = [e for e in named(trace, "", ph="X", pid=2, tid=2) if e["args"].get("token") is not None]
    assert [event["args"]["token"] for event in mine] == list(range(12))
    assert "".join(event["args"]["text"] for event in mine) == "".join(WORDS[i % len(WORDS)] for i in range(12))
    assert mine[0]["name"].startswith("prefill ")
    assert {event["name"] for event in mine[1:]} == {"decode"}


def test_an_empty_run_is_an_empty_trace(playground: Playground) -> None:
    document = json.loads(exports.export("trace", playground.recording()))
    check_trace(document)
    assert not [event for event in document["traceEvents"] if event["ph"] != "M"]


def from_elsewhere(lines: list[bytes], **absent: str) -> list[bytes]:
    """The same run as another server would tell it: without steps, and only at its end how long a request waited."""

    def change(document: list[dict[str, Any]]) -> None:
        document[0]["snapshot"]["absent"] = {"steps": "no", **absent}
        for frame in document[1:]:
            frame["steps"] = []
            frame["requests"] = [event for event in frame["requests"] if event[1] != "scheduled"]
            for _, kind, _, about in frame["requests"]:
                if kind != "finished" or "server_times" in absent:
                    about.pop("queue_ms", None)

    return changed(lines, change)


@pytest.mark.parametrize("queue_known", [True, False])
def test_without_steps_a_request_is_queued_no_longer_than_until_its_first_token(
    lines: list[bytes], queue_known: bool
) -> None:
    elsewhere = from_elsewhere(lines, **({} if queue_known else {"server_times": "no"}))
    document = json.loads(exports.export("trace", elsewhere))
    check_trace(document)
    run = RecordedRun(parse(elsewhere, "run.jsonl"))
    assert run.end >= max(token.t for token in run.tokens)
    (second,) = [event for event in named(document, "", ph="X", tid=2) if event["cat"] == "queued"]
    request = run.requests[2]
    begun = request.begun if queue_known else request.first
    assert begun is not None and request.submitted is not None
    assert (second["name"], second["dur"]) == (
        "queued" if queue_known else "waiting",
        pytest.approx((begun - request.submitted) * 1000, abs=1),
    )
    assert len(named(document, "prefill", ph="X", tid=2)) == queue_known
    decodes = named(document, "decode", ph="X", tid=2)
    assert [event["args"]["token"] for event in decodes] == list(range(1, 12))


def test_figures_that_another_server_does_not_report_are_left_open(lines: list[bytes]) -> None:
    def figures(lines: list[bytes]) -> list[float | None]:
        rows = {row.name: row.value for row in run_statistics(RecordedRun(parse(lines, "run.jsonl")))}
        return [rows[name] for name in ("steps", "prompt tokens computed", "prompt tokens saved", "preemptions")]

    def count(document: list[dict[str, Any]]) -> None:
        for frame, preemptions in zip(document[1:], (3, 4, 1, 2), strict=False):  # it is restarted once
            frame["loads"] = [{"t": frame["t"], "preemptions": preemptions}]

    assert figures(from_elsewhere(lines, cached_tokens="no")) == [None] * 4
    elsewhere = changed(from_elsewhere(lines), count)
    answered = [r for r in RecordedRun(parse(elsewhere, "run.jsonl")).requests.values() if r.ended_well]
    prompts, cached = sum(r.prompt_tokens for r in answered), sum(r.cached for r in answered)
    assert figures(elsewhere) == [None, prompts - cached, cached, 3]


def test_a_report_does_not_take_our_settings_and_machine_for_another_server_s(lines: list[bytes]) -> None:
    def rows(settings: dict[str, Any]) -> dict[str, str]:
        def change(document: list[dict[str, Any]]) -> None:
            document[0]["info"] |= {"server": "vLLM at a:1", "server_settings": settings, "num_parameters": 0}
            document[0]["environment"] = environment(threads=0, device="server")

        page = exports.export("report", changed(from_elsewhere(lines, knobs="it has no such route"), change)).decode()
        assert ("Not known: it has no such route." in page) == (not settings)
        return dict(
            re.findall(r'<tr><td>(?:[^<]*<span class="quiet">)?(\w[^<]*)(?:</span>)?</td><td[^>]*>(.*?)</td>', page)
        )

    told = rows({"max_num_seqs": 128, "enable_prefix_caching": True})
    assert (told["max_num_seqs"], told["enable_prefix_caching"], told["server"]) == ("128", "on", "vLLM at a:1")
    assert not {"max_batch_size", "torch", "cpu", "num_parameters"} & told.keys()
    assert "max_batch_size" not in rows({})


# The table


def test_the_table_has_a_row_a_token(lines: list[bytes], recording: Recording) -> None:
    rows = table("tokens", lines)
    run = RecordedRun(recording)
    assert len(rows) == sum(len(request.token_runs) for request in run.requests.values())
    times = [float(row["time_ms"]) for row in rows]
    assert times == sorted(times)
    mine = [row for row in rows if row["request"] == "2"]
    assert [row["token"] for row in mine] == [str(i) for i in range(12)]
    assert [row["text"] for row in mine] == [WORDS[i % len(WORDS)] for i in range(12)]
    assert (mine[0]["kind"], mine[0]["lane"], mine[0]["burst"], mine[0]["itl_ms"]) == ("lane", "2", "", "")
    for before, after in pairwise(mine):
        assert float(after["itl_ms"]) == pytest.approx(float(after["time_ms"]) - float(before["time_ms"]), abs=0.03)
    steps = {str(step.step_id): step for step in run.steps}
    for row in rows:
        step = steps[row["step"]]
        assert (row["step_prompt_tokens"], row["step_decode_tokens"]) == (
            str(step.prompt_tokens),
            str(step.decode_tokens),
        )
    assert {row["text"] for row in rows if row["kind"] == "api"} == {""}


def test_the_table_of_steps_has_their_figures(lines: list[bytes], recording: Recording) -> None:
    rows = table("steps", lines)
    run = RecordedRun(recording)
    assert [(row["step_id"], row["prompt_tokens"], row["entries"]) for row in rows] == [
        (str(step.step_id), str(step.prompt_tokens), str(len(step.entries))) for step in run.steps
    ]
    assert min(float(row["t0"]) for row in rows) >= 0
    assert sum(int(row["preempted"]) for row in rows) == 1


def test_a_text_that_looks_like_a_formula_stays_text(lines: list[bytes]) -> None:
    formula = [line.replace(b'"A step "', b'"=cmd|calc"') for line in lines]
    rows = table("tokens", formula)
    assert "'=cmd|calc" in {row["text"] for row in rows}


# Figures and report


def test_figures_keep_to_the_definitions(recording: Recording, engine: FakeEngine) -> None:
    told = {figure.name: figure.value for figure in run_statistics(RecordedRun(recording))}
    streams = [stream.metrics for stream in engine.streams.values()]
    gaps = sorted(gap * 1000 for metrics in streams for gap in metrics.itl_s)
    assert told["requests"] == 7
    assert told["aborted"] == 1
    assert told["tokens"] == sum(metrics.completion_tokens for metrics in streams)
    assert told["ITL p50"] == pytest.approx(gaps[len(gaps) // 2], abs=(gaps[-1] - gaps[0]) / 4 + 0.1)
    ttft = [metrics.ttft_s * 1000 for metrics in streams if metrics.ttft_s is not None]
    assert told["TTFT p50"] == pytest.approx(statistics.median(ttft), abs=0.05)
    tpot = [
        m.tpot_s * 1000
        for m, s in zip(streams, engine.streams.values(), strict=True)
        if m.tpot_s and s.finish_reason == "length"
    ]
    assert told["TPOT p50"] == pytest.approx(statistics.median(tpot), rel=0.05)


def test_the_report_is_one_file_with_a_row_for_each_fact_and_change(lines: list[bytes]) -> None:
    def change(document: list[dict[str, Any]]) -> None:
        document[0]["info"]["choices"] = [
            {"part": "linear layers", "chosen": "oneDNN", "why": "packed < plain", "slow": None},
            {"part": "attention", "chosen": "gather", "why": "", "slow": None},
        ]
        document[0]["info"] |= {"sampling_defaults": {"temperature": 0.6, "top_k": 20}, "eos_token_ids": [2, 1007]}
        changes = [{"prefill_max_tokens": [None, 64]}, {"max_batch_size": [32, 8]}]
        document[1]["knobs"] = [[100.0 + number, 5, of] for number, of in enumerate(changes)]

    page = exports.export("report", changed(lines, change)).decode()
    assert page.count("<script") >= 5
    assert "Plotly.newPlot" in page
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=\"(?!data:)", page)
    assert "@import" not in page
    rows = dict(
        re.findall(r'<tr><td>(?:[^<]*<span class="quiet">)?(\w[^<]*)(?:</span>)?</td><td[^>]*>(.*?)</td>', page)
    )
    assert (rows["linear layers"], rows["attention"]) == ("oneDNN: packed &lt; plain", "gather")
    assert (rows["model"], rows["sampling_defaults"]) == ("fake-chat", "temperature 0.6, top_k 20")
    assert rows["eos_token_ids"] == "2, 1007"
    assert "choices" not in rows
    assert not any(value.startswith(("[", "{")) for value in rows.values())
    assert {rows[limit] for limit in ("prefill_max_batch_size", "step_max_tokens", "max_step_tokens")} == {"∞"}
    assert {rows[nothing] for nothing in ("no_cuda_graphs", "device_name")} == {"–"}
    assert rows["scheduling_policy"] == "first come"
    told = re.findall(r"<td>[\d.]+ s, step 5</td><td[^>]*>(.*?)</td>", page)
    assert told == ["Prefill budget ∞ → 64", "Max batch 32 → 8"]


def test_the_report_begins_with_the_newest_picture_of_two_bursts(lines: list[bytes]) -> None:
    one = {
        "title": [["Prefill budget ", ""], ["</script>", "value"]],
        "gaps": [[3, 4.0]],
        "around": [],
        "firsts": [1.0],
    }
    about = {
        "about": "",
        "shows": "",
        "longest": "",
        "moment": "burst",
        "unit": "ms",
        "sides": [one, one],
        "figures": [],
    }

    def change(document: list[dict[str, Any]]) -> None:
        for number, frame in enumerate(document[1:3]):
            frame["pair"] = {"sentence": [[f"sentence {number}", ""]], **about}

    report = exports.export("report", changed(lines, change)).decode()
    assert "sentence 1" in report
    assert "sentence 0" not in report
    assert report.index('<canvas class="pair"') < report.index("Inter-token latency") < report.index("TTFT p50")
    assert "u003c/script>" in report, "text cannot end the script"


def test_a_report_of_a_run_with_many_changes_draws_each(lines: list[bytes]) -> None:
    changes = [[100.0 + i / 100, 5, {"prefill_max_tokens": [None, 64 + i]}] for i in range(400)]
    report = exports.export("report", changed(lines, lambda document: document[1].update(knobs=changes)))
    assert report.decode().count('"type":"line"') >= 400


def test_the_table_of_requests_says_what_their_tokens_say(lines: list[bytes], recording: Recording) -> None:
    rows = {int(row["request"]): row for row in table("requests", lines)}
    run = RecordedRun(recording)
    assert list(rows) == list(run.requests)
    for rid, request in run.requests.items():
        row, times = rows[rid], [token.t for token in request.token_runs]
        assert (int(row["tokens"]), row["reason"]) == (len(times), request.reason or "")
        if len(times) > 1:
            assert float(row["tpot_ms"]) == pytest.approx((times[-1] - times[0]) / (len(times) - 1), abs=0.02)
            assert float(row["itl_max_ms"]) == pytest.approx(max(b - a for a, b in pairwise(times)), abs=0.02)
    assert [int(row["preemptions"]) for row in rows.values()] == [1, *(0 for _ in list(rows)[1:])]
    assert [row["title"] for row in rows.values()][:2] == ["What? <b>", "What? <b>"]
    assert {row["kind"] for row in rows.values()} == {"lane", "burst", "api"}


@pytest.mark.parametrize("late", [False, True])
def test_what_another_server_does_not_report_is_empty(lines: list[bytes], late: bool) -> None:
    absent = {"cached_tokens": "no", "steps": "no"}
    cut = changed(lines, lambda document: (document[-1] if late else document[0]["snapshot"]).update(absent=absent))
    rows = table("requests", cut)
    assert {(row["cached_tokens"], row["shared_tokens"], row["preemptions"]) for row in rows} == {("", "", "")}
    assert all(row["prompt_tokens"] for row in rows)


def test_the_traffic_of_a_run_can_be_played_again(lines: list[bytes], recording: Recording, tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_bytes(b"".join(lines))
    assert main([str(tmp_path / "run.jsonl"), "--traffic", str(tmp_path / "traffic.jsonl")]) == 0
    written = (tmp_path / "traffic.jsonl").read_bytes()
    assert written == exports.export("traffic", lines)
    sent = [r for r in RecordedRun(recording).requests.values() if r.tokens]
    assert len(sent) > 4
    found = parse_traffic(written)
    assert [(r.prompt, r.answer_tokens) for r in found] == [(r.prompt_tokens, len(r.token_runs)) for r in sent]
    arrivals = [(r.submitted or 0) / 1000 for r in sent]
    assert [r.arrival_s for r in found] == pytest.approx([at_s - arrivals[0] for at_s in arrivals], abs=1e-4)


@pytest.fixture
def of_tenants(engine: FakeEngine, playground: Playground) -> list[bytes]:
    """A burst and a lane of this tab, of two tenants, the lane's a more urgent one; and two requests of a program's."""
    about = {"size": 2, "kind": "equal", "max_new_tokens": 3, "seed": 3}
    playground.traffic.burst(**about, tab_id=TAB, tenant="gold")
    silver = SamplingParams(max_new_tokens=3, tenant="silver", priority=-2)
    playground.chats.send("What?", lanes=[1], tab_id=TAB, params=silver)
    for _ in range(2):
        playground.chats.ask("a program", SamplingParams(max_new_tokens=3, tenant="somebody"))
    playground.traffic.burst(**about, tab_id=TAB)
    play(engine, playground, 8)
    return list(playground.recording(TAB))


def test_tenants_and_priorities_are_kept_but_names_only_of_this_tab(of_tenants: list[bytes]) -> None:
    tenants = ["gold", "gold", "silver", "tenant 3", "tenant 3", "", ""]
    assert [(row["tenant"], row["priority"]) for row in table("requests", of_tenants)] == [
        (tenant, "-2" if tenant == "silver" else "0") for tenant in tenants
    ]
    sent = parse_traffic(exports.export("traffic", of_tenants))
    assert [(one.tenant or "", one.priority) for one in sent] == [
        (tenant, -2 if tenant == "silver" else 0) for tenant in tenants
    ]
    queued = named(json.loads(exports.export("trace", of_tenants)), "queued")
    assert [event["args"]["tenant"] or "" for event in queued] == tenants
    assert b"somebody" not in b"".join(of_tenants)


def test_a_recording_that_begins_in_their_midst_has_tenants_too(of_tenants: list[bytes]) -> None:
    header, *frames = [json.loads(line) for line in of_tenants]
    before = InitialState(header["knobs"], 0.0)
    first = frames[0]
    before.fold(first, [(TAB, first["titles"], first["texts"], first["tenants"])])
    header["snapshot"] = before.snapshot(lambda tab: tab == TAB)
    cut = [json.dumps(line).encode() for line in (header, *frames[1:])]
    assert [r.tenant_text for r in RecordedRun(parse(cut, "cut")).requests.values()] == [
        *("gold", "gold", "silver", "tenant 3", "tenant 3", None, None)
    ]


def test_traffic_that_is_too_much_for_a_file_is_cut(
    lines: list[bytes], recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = parse_traffic(exports.export("traffic", lines))
    for name, most in (("MAX_REQUESTS", 3), ("MAX_ANSWER_TOKENS", 2)):
        monkeypatch.setattr(f"roseplay.traffic.own.{name}", most)
    found = parse_traffic(exports.export("traffic", lines))
    newest = whole[-3:]
    assert [(r.prompt, r.answer_tokens) for r in found] == [(r.prompt, min(2, r.answer_tokens)) for r in newest]


def test_a_table_of_requests_that_begins_in_their_midst(lines: list[bytes]) -> None:
    """A long run's older frames are dropped, but what they say about a request that is still running is kept."""
    document = [json.loads(line) for line in lines]
    whole, late = InitialState(document[0]["knobs"], 0.0), 8
    for frame in document[1:late]:
        whole.fold(frame)
    header = {**document[0], "snapshot": whole.snapshot(lambda tab: True)}
    cut = [json.dumps(part).encode() for part in (header, *document[late:])]
    tables = [table("requests", part) for part in (lines, cut)]
    alike = ("request", "tokens", "tpot_ms", "itl_max_ms", "preemptions", "reason")
    before, after = ({row["request"]: [row[name] for name in alike] for row in table} for table in tables)
    assert after
    assert after.items() <= before.items()


# The command, the routes and the endpoint


def test_the_command_makes_what_is_asked_for(lines: list[bytes], tmp_path: Path, capsys: Any) -> None:
    source = tmp_path / "run.jsonl"
    source.write_bytes(b"".join(lines))
    files = {"--trace": "t.json", "--csv": "t.csv", "--steps": "s.csv", "--requests": "q.csv", "--report": "r.html"}
    flags = [part for flag, name in files.items() for part in (flag, str(tmp_path / name))]
    assert main([str(source), *flags]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in files.values())
    check_trace(json.loads((tmp_path / "t.json").read_text()))
    assert (tmp_path / "t.csv").read_bytes() == exports.export("tokens", lines)
    assert (tmp_path / "s.csv").read_bytes() == exports.export("steps", lines)
    assert (tmp_path / "q.csv").read_bytes() == exports.export("requests", lines)


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: Any) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("nothing\n")
    for arguments in (
        [str(broken), "--csv", str(tmp_path / "x.csv")],
        [str(tmp_path / "missing"), "--csv", "x.csv"],
    ):
        assert main(arguments) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert told.startswith("roseplay export: ")
    with pytest.raises(SystemExit) as ended:
        main([str(broken)])
    assert ended.value.code == 2


def client_of(host: PageHost) -> TestClient:
    """A client of the routes alone."""
    add_recording_routes(app := FastAPI(), host)
    return TestClient(app)


@pytest.fixture(scope="module")
def page() -> tuple[Playground, TestClient]:
    """A page with a request of this tab."""
    engine = FakeEngine()
    playground = Playground(engine)
    playground.chats.send("hello", lanes=[1], tab_id=TAB, params=SamplingParams(max_new_tokens=8))
    play(engine, playground, 9)
    return playground, client_of(playground)


def test_routes_serve_the_files(page: tuple[Playground, TestClient]) -> None:
    playground, client = page
    assert client.get("/ui/export").json()["tokens"] == 8
    for tab, knows in ((TAB, True), ("", False)):
        for name in ("recording", "tokens"):
            answer, kind = (
                client.get(f"/ui/export/{exports.KINDS[name].file}", params={"tab": tab}),
                exports.KINDS[name],
            )
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind.media_type)
            assert answer.headers["content-disposition"] == f'attachment; filename="roseplay-{kind.file}"'
            assert answer.content == exports.export(name, playground.recording(tab))
            assert (WORDS[0] in answer.text) == knows
    for unknown in ("/ui/export/secrets.txt", "/ui/recording"):
        assert client.get(unknown).status_code == 404


def test_an_export_without_room_on_the_disk_says_so(
    page: tuple[Playground, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    answer = page[1].get("/ui/export/report.html")
    assert (answer.status_code, "No space left on device" in answer.text) == (503, True)


def test_an_export_costs_the_server_little_memory() -> None:
    replay = ReplayServer(str(demo_path()))
    client = client_of(replay)
    size = len(client.get("/ui/export/recording.jsonl").content)
    assert size > 100_000
    tracemalloc.start()
    try:
        answer = client.get("/ui/export/trace.json")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status_code == 200
    assert answer.content == exports.export("trace", replay.recording())
    assert peak < 8 * size + 4 * len(answer.content)


def test_slow_motion_is_labelled_wherever_its_times_are(engine: FakeEngine, playground: Playground) -> None:
    def ask() -> None:
        playground.chats.send("What?", lanes=[1], tab_id=TAB, params=SamplingParams(max_new_tokens=6))
        play(engine, playground, 7)

    ask()
    plain = list(playground.recording(TAB))
    playground.set_knobs({"slow_motion": 4})
    ask()
    playground.set_knobs({"slow_motion": 1})
    ask()
    slowed = list(playground.recording(TAB))
    factors = [row["slow_motion"] for row in table("tokens", slowed)]
    assert factors == ["1"] * 6 + ["4"] * 6 + ["1"] * 6
    steps = [e for e in json.loads(exports.export("trace", slowed))["traceEvents"] if e.get("cat") == "step"]
    assert {step["args"]["slow_motion"] for step in steps} == {1, 4}
    whole = table("requests", slowed)
    assert [row["slow_motion"] for row in whole] == ["1", "4", "1"]
    page = exports.export("report", slowed).decode()
    assert "s of it in slow motion" in page
    curves = [trace.name for trace in charts.ttft(RecordedRun(parse(slowed, "run"))).data]
    assert curves == ["lanes and programs", "lanes and programs at ×4"], "times that cannot be compared are apart"
    assert len(re.findall(r'"slow motion (?:×|\\u00d7)4"', page)) == 3  # in each chart over time
    units = {
        figure.unit for figure in run_statistics(RecordedRun(parse(slowed, "run"))) if figure.unit.startswith("ms")
    }
    assert units == {"ms partly at ×4"}
    assert "slow motion" not in exports.export("report", plain).decode().replace("slow_motion", "")
    assert {figure.unit for figure in run_statistics(RecordedRun(parse(plain, "run")))} == {"", "s", "ms", "tok/s"}


def test_a_request_answered_partly_in_slow_motion_says_so(engine: FakeEngine, playground: Playground) -> None:
    playground.chats.send("What?", lanes=[1], tab_id=TAB, params=SamplingParams(max_new_tokens=6))
    play(engine, playground, 3)
    playground.set_knobs({"slow_motion": 2.5})
    play(engine, playground, 4)
    recorded = list(playground.recording(TAB))
    (row,) = table("requests", recorded)
    assert row["slow_motion"] == "1 2.5"
    run = RecordedRun(parse(recorded, "run"))
    (request,) = run.requests.values()
    assert run.factors_between(request.submitted, request.first) == [1.0], "its first token came before"
    assert run.factors_between(None, None) == [1.0, 2.5]
