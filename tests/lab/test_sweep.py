"""Sweeps and searches: what they request, what they measure, and what they keep when stopped."""

from __future__ import annotations

import gc
import itertools
import json
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roseplay.formats.segments import as_html
from roseplay.lab import arms, command
from roseplay.lab.command import main
from roseplay.lab.load import Load, PlayedLoad, make_load
from roseplay.lab.measures import FIGURES_OF_A_RUN
from roseplay.lab.measuring import measure_run
from roseplay.lab.order import parse_experiment
from roseplay.lab.report import text_report
from roseplay.lab.results import parse_result, points_csv
from roseplay.lab.sweep import Sweep, spaced
from roseplay.lab.words import sentences
from roseplay.traffic.scenarios import SCENARIOS
from tests.lab.fake_arms import FakeArms, ended, fake_lab
from tests.play.fake_engine import FakeEngine


def parse_sweep(body: dict[str, Any]) -> Sweep:
    sweep = parse_experiment(body)
    assert isinstance(sweep, Sweep)
    return sweep


QUICK = {"num_requests": 2, "max_new_tokens": 3}
BODY = {"scenario": "token-budget", "repeats": 2, "params": QUICK}
BATCHES = {**BODY, "sweep": {"setting": "max_batch_size", "from": 1, "to": 16, "points": 3}}


def test_values_of_a_rate_are_even_and_those_of_a_knob_grow_by_factors() -> None:
    assert spaced(1, 12, 12, whole=False) == [float(value) for value in range(1, 13)]
    assert spaced(1, 16, 5, whole=True) == [1, 2, 4, 8, 16]
    assert spaced(1, 3, 9, whole=True) == [1, 2, 3]


def test_a_sweep_of_the_rate_lasts_as_long_at_each() -> None:
    asked = parse_sweep(
        {"scenario": "admission", "sweep": {"setting": "rate_per_s", "from": 2, "to": 6, "points": 3, "seconds": 5}}
    )
    assert {value: (q.scenario.num_requests, q.scenario.rate_per_s) for value, q in asked.loads().items()} == {
        2: (10, 2), 4: (20, 4), 6: (30, 6)
    }  # fmt: skip
    own = {"traffic": {"requests": [[0, 5, 2], [1, 5, 2], [4, 5, 2]]}}
    asked = parse_sweep({**own, "sweep": {"setting": "rate_per_s", "from": 1, "to": 4, "points": 2}})
    assert [[r.arrival_s for r in q.traffic.requests] for q in asked.loads().values() if q.traffic] == [
        [0, 0.5, 2], [0, 0.125, 0.5]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({}, "sweep, setting is missing"),
        ({"setting": "seed"}, "sweep, setting should be"),
        ({"setting": "max_batch_size", "from": 1}, "sweep, to is missing"),
        ({"setting": "max_batch_size", "from": 1.5, "to": 3}, "from is 1.5: use a whole number"),
        ({"setting": "max_batch_size", "from": 3, "to": 3}, "the last must be larger than the first"),
        ({"setting": "rate_per_s", "from": 1, "to": 500, "seconds": 10}, "choose a lower rate or fewer seconds"),
        ({"setting": "rate_per_s", "from": 1, "to": 5, "points": 1}, "sweep, points should be"),
        ({"setting": "rate_per_s", "from": 1, "to": 5, "points": 33}, "sweep, points should be"),
        ({"setting": "rate_per_s", "from": 1, "to": 5, "colour": 1}, "sweep: colour is not known: use setting"),
        ([], "sweep must be a JSON object"),
    ],
)
def test_a_bad_sweep_is_refused_with_a_reason(sweep: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_sweep({"scenario": "admission", "sweep": sweep})


def test_each_value_is_measured_on_one_engine_and_the_result_can_be_opened(engine: FakeEngine) -> None:
    fake, lab = FakeArms(), fake_lab(engine)
    lab = fake_lab(engine, fake)
    told = ended(lab.start(BATCHES))
    assert (told["state"], told["kind"], told["error"]) == ("done", "sweep", None)
    assert [(run["label"], run["repeat"]) for run in told["progress"]] == [
        (f"max batch {value}", number) for number, values in ((1, (1, 4, 16)), (2, (16, 4, 1))) for value in values
    ]
    assert len(fake.engines) == 1
    assert fake.all_closed
    assert not engine.paused
    document = lab.store.get(told["result"])
    assert document is not None
    assert [point["value"] for point in document["points"]] == document["asked"] == [1, 4, 16]
    assert all(len(point["runs"]) == 2 for point in document["points"])
    assert parse_result(json.dumps(document).encode()) == document
    assert len(points_csv(document).splitlines()) == 4


LENGTHS = {**BODY, "scenario": "swap", "sweep": {"setting": "prompt_tokens", "from": 32, "to": 128, "points": 3}}
B = {"knobs": {"preemption_mode": "swap"}, "config": {}}


def test_a_sweep_of_the_prompt_length_sends_prompts_of_each_length(engine: FakeEngine) -> None:
    """The fake engine has no tokenizer, so a text of 12 words is 12 tokens."""
    document, told = swept(engine, LENGTHS)
    assert [run["label"] for run in told["progress"]][:3] == [f"{value} prompt tokens" for value in (32, 64, 128)]
    for point in document["points"]:
        assert [run["prompt_tokens"] for run in point["runs"]] == pytest.approx([point["value"]] * 2, abs=7)
        assert point["requests"] == QUICK["num_requests"]
    assert document["setting"] == "prompt_tokens"
    assert "every length keeps the promise" in sentences(document["summary"])[0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sweep": {**LENGTHS["sweep"], "to": 99.5}}, "to is 99.5: use a whole number"),
        ({"params": {}, "traffic": {"requests": [[0, 5, 3]]}}, "prompt_tokens is for a scenario"),
        ({"sweep": BATCHES["sweep"], "b": {"knobs": {"max_batch_size": 3}}}, "max_batch_size in both arms"),
    ],
)
def test_a_length_that_prompts_cannot_have_is_refused(engine: FakeEngine, more: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fake_lab(engine).start({**LENGTHS, **more})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"from": 1}, "its texts do not make prompts of 1 tokens"),
        ({"to": 9999}, "prompts of 9999 tokens do not fit, there is room for"),
    ],
)
def test_a_length_that_prompts_cannot_have_ends_the_job_before_an_engine_opens(
    engine: FakeEngine, more: Any, words: str
) -> None:
    fake = FakeArms()
    told = ended(fake_lab(engine, fake).start({**LENGTHS, "sweep": {**LENGTHS["sweep"], **more}}))
    assert (told["state"], fake.engines, engine.paused) == ("error", [], False)
    assert words in told["error"]


def test_prompts_are_made_in_the_job_s_thread_and_only_those_of_one_rate_are_held(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, held, threads = [], [], set()

    def make(load: Load, *given: Any) -> PlayedLoad:
        threads.add(threading.current_thread().name)
        made.append(load)
        played = make_load(load, *given)
        prompts = [Prompts(arrival.prompt) for arrival in played.workload]
        kept.extend(map(weakref.ref, prompts))
        gc.collect()
        held.append(sum(ref() is not None for ref in kept))
        return played._replace(
            workload=[replace(a, prompt=ids) for a, ids in zip(played.workload, prompts, strict=True)]
        )

    class Prompts(list[int]):
        """A prompt that can be counted for as long as something holds it."""

    kept: list[weakref.ref[Prompts]] = []
    monkeypatch.setattr("roseplay.lab.load.make_load", make)
    lengths = {**LENGTHS, "scenario": "swap", "repeats": 1}
    assert ended(fake_lab(engine).start(lengths))["state"] == "done"
    assert threads == {"roseplay-lab"}
    assert len({id(load) for load in made}) == 3
    assert max(held) <= 2 * QUICK["num_requests"]  # of the run before, while those of the next are made
    made.clear()
    rates = {"setting": "rate_per_s", "from": 50, "to": 100, "points": 32}
    told = ended(
        fake_lab(engine).start({"traffic": {"requests": [[0, 5, 1], [1, 5, 1]]}, "repeats": 1, "sweep": rates})
    )
    assert (told["state"], len(made)) == ("done", 1)  # all rates have the same prompts


def test_both_arms_are_measured_at_each_value_before_the_next(engine: FakeEngine) -> None:
    fake, body = FakeArms(), {**LENGTHS, "b": B}
    lab = fake_lab(engine, fake)
    told = ended(lab.start(body))
    assert [run["label"] for run in told["progress"]] == [
        *(f"{arm}, {value} prompt tokens" for value in (32, 64, 128) for arm in "AB"),
        *(f"{arm}, {value} prompt tokens" for value in (128, 64, 32) for arm in "BA"),
    ]
    document = lab.store.get(told["result"])
    assert document is not None
    assert parse_result(json.dumps(document).encode()) == document
    assert [arm["knobs"]["preemption_mode"] for arm in document["arms"].values()] == ["recompute", "swap"]
    assert "preemption mode swap" in document["arms"]["B"]["label"]
    assert [[len(point["runs"]) for point in document[name]] for name in ("points", "b_points")] == [[2] * 3] * 2
    summary = document["summary"]
    assert [row["value"] for row in summary["b"]["points"]] == [32, 64, 128]
    crossings = [found for found in summary["findings"] if found["kind"] == "Crossing"]
    assert [found["figure"] for found in crossings] == [
        "output_tokens_per_s",
        "e2e_p99_ms",
        "ttft_p95_ms",
        "itl_p99_ms",
    ]
    assert all(len(found["verdicts"]) == 3 for found in crossings)
    assert {found["arm"] for found in summary["findings"]} == {"", "A", "B"}
    about = [(run["arm"], run["value"], run["case"]) for run in told["progress"][:2]]
    assert about == [("A", 32, ""), ("B", 32, "")]
    table = points_csv(document).decode().splitlines()
    assert [line.split(",")[:2] for line in table] == [
        ["prompt_tokens", "arm"], *([str(value), arm] for value in (32, 64, 128) for arm in "AB")
    ]  # fmt: skip
    assert [line.split("  ")[0] for line in text_report(document)[-6:]] == [
        f"{value} {arm}" for value in (32, 64, 128) for arm in "AB"
    ]
    for broken, words in (
        ({"b_points": document["b_points"][1:]}, "the values in the result differ"),
        ({"arms": {"A": document["arms"]["A"]}}, "the result lacks arm B"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_result(json.dumps({**document, **broken}).encode())


def test_a_figure_that_is_better_in_b_from_a_length_on_crosses_there(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Throughput of A and B in the order of measurement: A is faster at 32 tokens, B at 128."""
    speeds = iter([100, 80, 100, 101, 100, 150, 151, 101, 102, 101, 81, 101])

    def figures(*_: Any) -> dict[str, float]:
        of = {**dict.fromkeys(FIGURES_OF_A_RUN, 5.0), "kept_pct": 100.0, "prompt_tokens": 64.0}
        return {**of, "output_tokens_per_s": next(speeds)}

    monkeypatch.setattr("roseplay.lab.sweep.figures", figures)
    document, _ = swept(engine, {**LENGTHS, "b": B})
    summary = document["summary"]
    crossing = summary["findings"][0]
    assert (crossing["between"], crossing["verdicts"]) == ([[32, 128]], ["worse", "within", "better"])
    assert sentences(summary)[0].startswith("Throughput: A and B cross between 32 and 128 prompt tokens; B is worse at")
    assert "Prompts consist of whole texts, so their mean lengths differ: 64 at 32, 64 at 128." in sentences(summary)


@pytest.mark.parametrize("values", [[1, 4, 3], [1, 4, None], [0, 4, 16], [-1, 4, 16], [1, 4, 4], [4, 1, 16]])
def test_a_sweep_with_other_values_than_it_says_is_refused(engine: FakeEngine, values: list[Any]) -> None:
    lab = fake_lab(engine)
    document = json.loads(json.dumps(lab.store.get(ended(lab.start({**BATCHES, "repeats": 1}))["result"])))
    for asked in ([1, 4, 16], values):
        document["asked"] = asked
        for point, value in zip(document["points"], values, strict=True):
            point["value"] = value
        with pytest.raises(ValueError, match="values in the result|should be a valid number|should be greater than"):
            parse_result(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("complete", "kept"), [(1, {1: 1}), (2, {1: 1, 4: 1}), (3, {1: 1, 4: 1, 16: 1}), (4, {1: 1, 4: 1, 16: 2})]
)
def test_a_sweep_that_is_stopped_keeps_the_runs_it_has(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, complete: int, kept: dict[int, int]
) -> None:
    lab, measured = fake_lab(engine), []

    def measure(*given: Any, **how: Any) -> Any:
        measured.append(given)
        if len(measured) == 1 + complete + 1:  # the warm-up, the completed runs, and the next one
            lab.stop()
        return measure_run(*given, **how)

    monkeypatch.setattr("roseplay.lab.measuring.measure_run", measure)
    told = ended(lab.start(BATCHES))
    assert told["state"] == "stopped"
    document = lab.store.get(told["result"])
    assert document is not None
    assert {point["value"]: len(point["runs"]) for point in document["points"]} == kept
    assert {row["value"]: row["runs"] for row in document["summary"]["points"]} == kept
    assert parse_result(json.dumps(document).encode()) == document


RATES = {
    "scenario": "poisson",
    "params": QUICK,
    "limits": {"ttft_ms": 500, "itl_ms": 50},
    "sweep": {"setting": "rate_per_s", "from": 100, "to": 400, "points": 4},
}


@pytest.fixture
def ttft(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the TTFT p95 of the runs, in the order of measurement; the last value applies to all later runs."""

    def set_them(*values: float) -> None:
        left = itertools.chain(values, itertools.repeat(values[-1]))

        def figures(*_: Any) -> dict[str, float]:
            return {
                **dict.fromkeys(FIGURES_OF_A_RUN, 5.0),
                "kept_pct": 100.0,
                "prompt_tokens": 64.0,
                "ttft_p95_ms": next(left),
            }

        monkeypatch.setattr("roseplay.lab.sweep.figures", figures)

    return set_them


def swept(engine: FakeEngine, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document of a sweep, and its job's status at the end."""
    lab = fake_lab(engine)
    told = ended(lab.start(body))
    document = lab.store.get(told["result"])
    assert document is not None
    assert parse_result(json.dumps(document).encode()) == document
    return document, told


def test_a_slow_minute_of_the_machine_is_no_property_of_a_value(engine: FakeEngine, ttft: Callable[..., None]) -> None:
    """Measured value by value, the slow runs would be two of the three of 200 req/s."""
    slow = 700.0
    ttft(50, 60, 70, 90, slow, slow, 60, 50, 50, 60, 70, 90)
    document, told = swept(engine, {**RATES, "repeats": 3})
    assert [run["label"] for run in told["progress"]] == [
        f"{rate} req/s" for rate in (100, 200, 300, 400, 400, 300, 200, 100, 100, 200, 300, 400)
    ]
    rows = document["summary"]["points"]
    assert [row["figures"]["ttft_p95_ms"]["median"] for row in rows] == [50, 60, 70, 90]
    assert [(row["kept"], row["runs"]) for row in rows] == [(True, 3)] * 4
    assert sentences(document["summary"])[0].startswith("No knee up to 400 req/s: every rate keeps the promise")
    assert not any("disagree" in sentence for sentence in sentences(document["summary"]))


@pytest.mark.parametrize(("slow", "rounds"), [(900, 2), (300, 1)])
def test_rates_that_contradict_each_other_are_measured_again(
    engine: FakeEngine, ttft: Callable[..., None], slow: float, rounds: int
) -> None:
    """200 req/s was slow twice; it is repeated until its median keeps the promise and is not clearly worse."""
    ttft(50, slow, 70, 80, 80, 70, slow, 50, *(60, 70, 80), *(80, 70, 60))
    document, told = swept(engine, {**RATES, "repeats": 2})
    assert [len(point["runs"]) for point in document["points"]] == [2, *[2 + rounds] * 3]
    again = [(run["label"], run["repeat"], run["state"]) for run in told["progress"][8:]]
    assert again == [
        (f"{rate} req/s", number, "done")
        for number, rates in ((3, (200, 300, 400)), (4, (400, 300, 200)))[:rounds]
        for rate in rates
    ]
    assert [row["kept"] for row in document["summary"]["points"]] == [True] * 4
    assert not any("disagree" in sentence for sentence in sentences(document["summary"]))
    assert text_report(document)[0].endswith(f"2 to {2 + rounds} runs a value")


@pytest.mark.parametrize(
    ("repeats", "most", "runs"), [(1, 20, [1, 2, 2, 2]), (2, 20, [2, 4, 4, 4]), (2, 3, [2, 3, 3, 3])]
)
def test_rates_that_go_on_contradicting_each_other_are_said_to(
    engine: FakeEngine,
    ttft: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    repeats: int,
    most: int,
    runs: list[int],
) -> None:
    """200 req/s is slow each time. The extra rounds, up to twice the repeats or ``most``, do not include 100 req/s."""
    monkeypatch.setattr("roseplay.lab.sweep.MAX_REPEATS", most)
    rounds = [(50, 900, 70, 80), (80, 70, 900, 50)]
    ends = [(900, 70, 80), (80, 70, 900)]
    extra = [ends[number % 2] for number in range(repeats, max(runs))]
    ttft(*(value for number in range(repeats) for value in rounds[number % 2]), *itertools.chain(*extra), 1)
    document, _ = swept(engine, {**RATES, "repeats": repeats})
    assert [len(point["runs"]) for point in document["points"]] == runs
    assert document["summary"]["knee"] == 0
    said = sentences(document["summary"])[0]
    assert said.endswith("The rates disagree: 300 and 400 req/s keep the promise, but 200 req/s does not.")


def test_values_of_a_setting_need_not_rise_and_are_not_measured_again(
    engine: FakeEngine, ttft: Callable[..., None]
) -> None:
    ttft(900, 70, 50, 50, 70, 900)
    document, _ = swept(engine, BATCHES)
    assert [len(point["runs"]) for point in document["points"]] == [2, 2, 2]
    assert not any("disagree" in sentence or "does not rise" in sentence for sentence in sentences(document["summary"]))


@pytest.fixture
def told(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """Runs a job; returns its result so far as reported when each run begins, and at the end."""
    lab, seen = fake_lab(engine), []

    def measure(*given: Any, **how: Any) -> Any:
        seen.append(lab.describe()["state"]["so_far"])
        return measure_run(*given, **how)

    def run(body: Any) -> list[Any]:
        seen.clear()
        end = ended(lab.start(body))
        return [*seen[1:], end["so_far"], lab.store.get(end["result"])]  # without the warm-up

    monkeypatch.setattr("roseplay.lab.measuring.measure_run", measure)
    return run


def test_a_sweep_tells_its_result_so_far(told: Callable[[Any], list[Any]]) -> None:
    own = {"traffic": {"requests": [[0, 5, 3], [0.01, 5, 3]]}, "repeats": 2}
    *seen, document = told({**own, "sweep": BATCHES["sweep"]})
    assert seen[0] is None
    rows = [[row["runs"] for row in one["summary"]["points"]] for one in seen[1:]]
    assert rows == [[1], [1, 1], [1, 1, 1], [1, 1, 2], [1, 2, 2], [2, 2, 2]]
    assert [[len(point["runs"]) for point in one["points"]] for one in seen[1:]] == rows
    assert all(parse_result(json.dumps(one).encode()) == one for one in seen[1:])
    assert "traffic" not in seen[-1]
    assert {**seen[-1], "created": "", "traffic": document["traffic"]} == {**document, "created": ""}


def test_a_search_tells_its_result_so_far(told: Callable[[Any], list[Any]]) -> None:
    find = {"setting": "prefill_max_tokens", "itl_p99_ms": 1e5, "ttft_p95_ms": 0.01, "from": 16, "to": 64}
    *seen, document = told({**BODY, "repeats": 1, "find": find})
    assert seen[0] is None
    values = [[point["value"] for point in one["points"]] for one in seen[1:]]
    assert values == [[None], [None, 32], [None, 32, 48], [None, 32, 48, 64]]
    assert [one["summary"]["ended"] for one in seen[1:]] == [False, False, False, True]
    assert sentences(seen[1]["summary"]) == ["No answer yet: 16 to 64 are left."]
    assert {**seen[-1], "created": ""} == {**document, "created": ""}


def test_nothing_is_told_before_a_value_is_measured(engine: FakeEngine) -> None:
    lab = fake_lab(engine)
    job = lab.start({**BATCHES, "params": {"num_requests": 2, "max_new_tokens": 512}})
    assert job.status()["so_far"] is None
    lab.stop()
    told = ended(job)
    assert (told["so_far"], told["result"]) == (None, None)


def test_a_search_tries_values_until_none_is_left(engine: FakeEngine) -> None:
    fake = FakeArms()
    lab = fake_lab(engine, fake)
    find = {"setting": "prefill_max_tokens", "itl_p99_ms": 1e5, "ttft_p95_ms": 0.01, "from": 16, "to": 64}
    told = ended(lab.start({**BODY, "find": find}))
    assert (told["state"], told["kind"]) == ("done", "find")
    document = lab.store.get(told["result"])
    assert document is not None
    assert document["grid"] == [16, 24, 32, 48, 64, None]
    assert [point["value"] for point in document["points"]] == [None, 32, 48, 64]
    assert document["summary"]["answer"] is None
    assert document["summary"]["closest"] is not None
    assert len(fake.engines) == 1
    assert parse_result(json.dumps(document).encode()) == document
    document["points"].reverse()
    with pytest.raises(ValueError, match="the tries in the result differ"):
        parse_result(json.dumps(document).encode())


def test_a_search_measures_a_value_until_its_verdict_is_sure(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promise is broken in one of the first two runs of 24, and in every second run of 32."""
    itl = iter([50.0] * 2 + [5.0, 50.0, 5.0, 5.0] + [5.0, 50.0] * 3)

    def figures(*_: Any) -> dict[str, float]:
        return {
            **dict.fromkeys(FIGURES_OF_A_RUN, 1.0),
            "kept_pct": 100.0,
            "prompt_tokens": 64.0,
            "itl_p99_ms": next(itl),
        }

    monkeypatch.setattr("roseplay.lab.find.figures", figures)
    find = {"setting": "prefill_max_tokens", "itl_p99_ms": 10, "ttft_p95_ms": 10, "from": 16, "to": 32}
    lab = fake_lab(engine)
    document = lab.store.get(ended(lab.start({**BODY, "find": find}))["result"])
    assert document is not None
    rows = document["summary"]["points"]
    assert [(row["value"], row["runs"], row["within"]["itl_p99_ms"], row["sure"]) for row in rows] == [
        (None, 2, 0, True), (24, 4, 3, True), (32, 6, 3, False)
    ]  # fmt: skip
    assert [len(point["runs"]) for point in document["points"]] == [2, 4, 6]
    assert next(itl, None) is None
    assert parse_result(json.dumps(document).encode()) == document
    table = points_csv(document).decode().splitlines()
    assert [line.split(",")[:4] for line in table] == [
        ["prefill_max_tokens", "kept", "runs", "sure"],
        ["", "False", "2", "True"], ["24", "True", "4", "True"], ["32", "False", "6", "False"],
    ]  # fmt: skip
    assert text_report(document)[0].endswith("2 to 6 runs a value")
    assert [line.split("  ")[-1].strip() for line in text_report(document)[-2:]] == ["kept", "broken, not sure"]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> FakeArms:
    """Fake engines in place of those that ``main`` opens."""
    fake = FakeArms()
    monkeypatch.setattr(arms, "open_engine", fake)
    return fake


def test_the_command_line_prints_sentences_or_csv_or_json(pretend: FakeArms, tmp_path: Path, capsys) -> None:
    quick = ["token-budget", "--model", "tiny-chat", "--num-requests", "2", "--max-new-tokens", "3", "--repeats", "1"]
    sweep = [*quick, "--sweep", "batch", "--from", "1", "--to", "2", "--points", "2"]
    report = tmp_path / "sweep.html"
    assert main([*sweep, "--save", str(tmp_path / "sweep.json"), "--report", str(report)]) == 0
    printed = capsys.readouterr()
    saved = parse_result((tmp_path / "sweep.json").read_bytes())
    assert all(line in printed.out for line in sentences(saved["summary"]))
    told = ["run 1 of 2, round 1, max batch 1", "run 2 of 2, round 1, max batch 2"]
    assert [line.partition(":")[0] for line in printed.err.splitlines()] == told
    assert all(as_html(found["words"]) in report.read_text() for found in saved["summary"]["findings"])
    assert main([*sweep, "--csv"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("max_batch_size,kept,runs,output_tokens_per_s,output_tokens_per_s_min")
    assert [line.partition(",")[0] for line in table[1:]] == ["1", "2"]
    assert main([*quick, "--find", "prefill-budget", "--itl-p99", "1e5", "--ttft-p95", "1e5", "--json"]) == 0
    found = parse_result(capsys.readouterr().out.encode())
    assert (found["summary"]["answer"], [point["value"] for point in found["points"]]) == (0, [None])


def test_the_result_of_a_rate_sweep_tells_what_was_asked_not_its_first_value(engine: FakeEngine) -> None:
    lab = fake_lab(engine)
    rates = {"setting": "rate_per_s", "from": 100, "to": 300, "points": 2, "seconds": 0.5}
    body = {"scenario": "poisson", "repeats": 1, "params": {"max_new_tokens": 2}, "sweep": rates}
    document = lab.store.get(ended(lab.start(body))["result"])
    assert document is not None
    assert [point["requests"] for point in document["points"]] == [50, 150]
    assert (document["seconds"], document["params"]) == (0.5, SCENARIOS["poisson"].params() | {"max_new_tokens": 2})
    assert parse_result(json.dumps(document).encode()) == document


def test_files_own_arrivals_stay_in_the_result_of_a_rate_sweep(engine: FakeEngine) -> None:
    lab = fake_lab(engine)
    requests = [[0, 4, 2], [0.2, 4, 2]]
    rates = {"setting": "rate_per_s", "from": 10, "to": 20, "points": 2}
    body = {"repeats": 1, "traffic": {"name": "mine", "requests": requests}, "sweep": rates}
    document = lab.store.get(ended(lab.start(body))["result"])
    assert document is not None
    assert document["traffic"]["requests"] == requests


def test_an_interrupted_sweep_writes_what_it_has_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waited = command.Job.wait
    monkeypatch.setattr(arms, "open_engine", FakeArms())

    def interrupt(job: Any, timeout: float | None = None) -> bool:
        if timeout is not None and (job.status()["so_far"] or {}).get("points"):
            raise KeyboardInterrupt
        return waited(job, timeout)

    monkeypatch.setattr(command.Job, "wait", interrupt)
    file = tmp_path / "sweep.json"
    flags = ["--sweep", "batch", "--from", "1", "--to", "64", "--points", "7", "--repeats", "1", "--num-requests", "2"]
    assert main(["token-budget", *flags, "--save", str(file)]) == 130
    values = [point["value"] for point in parse_result(file.read_bytes())["points"]]
    assert values and values == [1, 2, 4, 8, 16, 32, 64][: len(values)]
    assert "interrupted" in capsys.readouterr().err
