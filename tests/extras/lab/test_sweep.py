"""Sweeps and searches: what they measure, what is measured again, and what they keep when stopped."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roseplay.extras.lab.command import main
from roseplay.extras.lab.find import grid_between
from roseplay.extras.lab.load import Load, PlayedLoad, make_load
from roseplay.extras.lab.order import parse_experiment
from roseplay.extras.lab.report import text_report
from roseplay.extras.lab.results import parse_result, points_csv
from roseplay.extras.lab.sweep import Sweep, doubled, spaced
from roseplay.extras.lab.words import sentences
from roseplay.formats.segments import as_html
from roseplay.traffic.scenarios import SCENARIOS
from tests.extras.lab.fake_arms import FakeArms, MadeUpArm, MadeUpArms, ended, fake_lab, in_order, ran
from tests.extras.lab.findings import has
from tests.play.fake_engine import FakeEngine

QUICK = {"num_requests": 2, "max_new_tokens": 3}
BODY = {"scenario": "token-budget", "repeats": 2, "params": QUICK}
BATCHES = {**BODY, "sweep": {"setting": "max_batch_size", "from": 1, "to": 16, "points": 3}}
LENGTHS = {**BODY, "scenario": "swap", "sweep": {"setting": "prompt_tokens", "from": 32, "to": 128, "points": 3}}
OF_B = {"b": {"knobs": {"preemption_mode": "swap"}, "config": {}}}
RATES = {
    "scenario": "poisson",
    "params": QUICK,
    "limits": {"ttft_ms": 500, "itl_ms": 50},
    "sweep": {"setting": "rate_per_s", "from": 100, "to": 400, "points": 4},
}
FIND = {"setting": "prefill_max_tokens", "itl_p99_ms": 10, "ttft_p95_ms": 4, "from": 16, "to": 64}


def runs_of(document: dict[str, Any], name: str = "points") -> list[int]:
    """The number of runs of each value."""
    return [len(point["runs"]) for point in document[name]]


def test_values_of_a_rate_are_even_and_those_of_a_knob_grow_by_factors() -> None:
    assert spaced(1, 12, 12, whole=False) == [float(value) for value in range(1, 13)]
    assert spaced(1, 16, 5, whole=True) == [1, 2, 4, 8, 16]
    assert spaced(1, 3, 9, whole=True) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_values_begin_and_end_where_they_should_and_are_evenly_apart(seed: int) -> None:
    draw = random.Random(seed)
    first, last, count = draw.randint(1, 50), draw.randint(51, 5000), draw.randint(2, 12)
    even, factors = (spaced(first, last, count, whole=whole) for whole in (False, True))
    assert [even[0], even[-1], len(even), factors[0], factors[-1]] == [first, last, count, first, last]
    assert all(b - a == pytest.approx((last - first) / (count - 1), abs=1e-3) for a, b in itertools.pairwise(even))
    for n, value in enumerate(factors if len(factors) == count else []):
        assert abs(value - first * (last / first) ** (n / (count - 1))) <= 0.5
    twice = doubled(first, last)
    assert (
        all(b == 2 * a for a, b in itertools.pairwise(twice))
        and twice[0] == first
        and twice[-1] <= last < 2 * twice[-1]
    )
    powers = {2**n for n in range(13)} | {3 * 2**n for n in range(12)}
    grid = grid_between(first, last)
    assert grid == tuple(sorted({first, last} | {value for value in powers if first < value < last}))
    assert grid_between(first, first) == grid_between(first, first - 1) == (first,)


def test_a_files_own_requests_arrive_at_each_rate() -> None:
    rates = {"setting": "rate_per_s", "from": 1, "to": 4, "points": 2}
    sweep = parse_experiment({"traffic": {"requests": [[0, 5, 2], [1, 5, 2], [4, 5, 2]]}, "sweep": rates})
    assert isinstance(sweep, Sweep)
    loads = [load.traffic for load in sweep.loads().values() if load.traffic is not None]
    assert [[request.arrival_s for request in traffic.requests] for traffic in loads] == [[0, 0.5, 2], [0, 0.125, 0.5]]


def test_each_value_is_measured_on_one_engine_and_the_result_can_be_opened(engine: FakeEngine) -> None:
    arms = FakeArms()
    document, told = ran(BATCHES, lab=fake_lab(engine, arms))
    assert (told["state"], told["kind"], told["error"]) == ("done", "sweep", None)
    assert [(run["label"], run["repeat"]) for run in told["progress"]] == [
        (f"max batch {value}", number) for number, values in ((1, (1, 4, 16)), (2, (16, 4, 1))) for value in values
    ]
    assert (len(arms.engines), arms.all_closed, engine.paused) == (1, True, False)
    assert [point["value"] for point in document["points"]] == document["asked"] == [1, 4, 16]
    assert runs_of(document) == [2, 2, 2]
    assert len(points_csv(document).splitlines()) == 4


def test_a_sweep_of_the_prompt_length_sends_prompts_of_each_length() -> None:
    """The fake engine has no tokenizer, so a text of 12 words is 12 tokens."""
    document, told = ran(LENGTHS)
    assert [run["label"] for run in told["progress"]][:3] == [f"{value} prompt tokens" for value in (32, 64, 128)]
    for point in document["points"]:
        assert [run["prompt_tokens"] for run in point["runs"]] == pytest.approx([point["value"]] * 2, abs=7)
        assert point["requests"] == QUICK["num_requests"]
    assert document["setting"] == "prompt_tokens"
    assert "every length keeps both limits" in sentences(document["summary"])[0]


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
    arms = MadeUpArms()
    told = ended(fake_lab(engine, arms).start({**LENGTHS, "sweep": {**LENGTHS["sweep"], **more}}))
    assert (told["state"], arms.arms, engine.paused) == ("error", [], False)
    assert words in told["error"]


def test_prompts_are_made_in_the_job_s_thread_and_only_those_of_one_rate_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, held, threads = [], [], set()

    def make(load: Load, *given: Any) -> PlayedLoad:
        threads.add(threading.current_thread().name)
        made.append(load)
        played = make_load(load, *given)
        prompts = [Prompts(arrival.prompt) for arrival in played.workload]
        kept.extend(map(weakref.ref, prompts))
        held.append(sum(ref() is not None for ref in kept))
        return played._replace(
            workload=[replace(a, prompt=ids) for a, ids in zip(played.workload, prompts, strict=True)]
        )

    class Prompts(list[int]):
        """A prompt that can be counted for as long as something holds it."""

    kept: list[weakref.ref[Prompts]] = []
    monkeypatch.setattr("roseplay.extras.lab.load.make_load", make)
    ran({**LENGTHS, "repeats": 1})
    assert threads == {"roseplay-lab"}
    assert len({id(load) for load in made}) == 3
    assert max(held) <= 2 * QUICK["num_requests"]  # of the run before, while those of the next are made
    made.clear()
    rates = {"setting": "rate_per_s", "from": 50, "to": 100, "points": 4}
    ran({"traffic": {"requests": [[0, 5, 1], [1, 5, 1]]}, "repeats": 1, "sweep": rates})
    assert len(made) == 1  # all rates have the same prompts


def test_both_arms_are_measured_at_each_value_before_the_next() -> None:
    document, told = ran({**LENGTHS, **OF_B})
    assert [run["label"] for run in told["progress"]] == [
        *(f"{arm}, {value} prompt tokens" for value in (32, 64, 128) for arm in "AB"),
        *(f"{arm}, {value} prompt tokens" for value in (128, 64, 32) for arm in "BA"),
    ]
    about = [(run["arm"], run["value"], run["case"]) for run in told["progress"][:2]]
    assert about == [("A", 32, ""), ("B", 32, "")]
    assert [arm["knobs"]["preemption_mode"] for arm in document["arms"].values()] == ["recompute", "swap"]
    assert "Preemption swap" in document["arms"]["B"]["label"]
    assert [runs_of(document, name) for name in ("points", "b_points")] == [[2] * 3] * 2
    summary = document["summary"]
    assert [row["value"] for row in summary["b"]["points"]] == [32, 64, 128]
    crossings = [found for found in summary["findings"] if found["kind"] == "Crossing"]
    assert [found["figure"] for found in crossings] == [
        *("output_tokens_per_s", "e2e_p99_ms", "ttft_p95_ms", "itl_p99_ms")
    ]
    assert all(len(found["verdicts"]) == 3 for found in crossings)
    assert {found["arm"] for found in summary["findings"]} == {"", "A", "B"}
    rows = [(value, arm) for value in (32, 64, 128) for arm in "AB"]
    table = points_csv(document).decode().splitlines()
    assert [line.split(",")[:2] for line in table] == [["prompt_tokens", "arm"], *([str(v), arm] for v, arm in rows)]
    assert text_report(document)[0].endswith("2 runs a value and arm")
    assert [line.split()[:2] for line in text_report(document)[-6:]] == [[str(v), arm] for v, arm in rows]
    for broken, words in (
        ({"b_points": document["b_points"][1:]}, "the values in the result differ"),
        ({"arms": {"A": document["arms"]["A"]}}, "the result lacks arm B"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_result(json.dumps({**document, **broken}).encode())


def test_a_figure_that_is_better_in_b_from_a_length_on_crosses_there() -> None:
    """Throughput of A and B in the order of measurement: A is faster at 32 tokens, B at 128."""
    speeds = [100, 80, 100, 101, 100, 150, 151, 101, 102, 101, 81, 101]
    document, _ = ran({**LENGTHS, **OF_B}, in_order("tokens_per_s", speeds))
    crossing = document["summary"]["findings"][0]
    assert (crossing["between"], crossing["verdicts"]) == ([[32, 128]], ["worse", "within", "better"])


@pytest.mark.parametrize("values", [[1, 4, 3], [1, 4, None], [0, 4, 16], [-1, 4, 16], [1, 4, 4], [4, 1, 16]])
def test_a_sweep_with_other_values_than_it_says_is_refused(values: list[Any]) -> None:
    document = json.loads(Path(__file__).with_name("sweep.json").read_text(encoding="utf-8"))
    document["points"] = document["points"][:3]
    for asked in ([1, 4, 16], values):
        document["asked"] = asked
        for point, value in zip(document["points"], values, strict=True):
            point["value"] = value
        with pytest.raises(ValueError, match="values in the result|should be a valid number|should be greater than"):
            parse_result(json.dumps(document).encode())


@pytest.mark.parametrize(("complete", "kept"), [(1, {1: 1}), (4, {1: 1, 4: 1, 16: 2})])
def test_a_sweep_that_is_stopped_keeps_the_runs_it_has(complete: int, kept: dict[int, int]) -> None:
    runs = itertools.count(1)

    def figures(arm: MadeUpArm) -> dict[str, float]:
        if next(runs) == complete + 1:
            lab.stop()
        return {}

    lab = fake_lab(FakeEngine(), MadeUpArms(figures))
    document, told = ran(BATCHES, lab=lab)
    assert told["state"] == "stopped"
    assert {point["value"]: len(point["runs"]) for point in document["points"]} == kept
    assert {row["value"]: row["runs"] for row in document["summary"]["points"]} == kept


def test_a_slow_minute_of_the_machine_is_no_property_of_a_value() -> None:
    """Measured value by value, the slow runs would be two of the three of 200 requests/s."""
    slow = 700.0
    arms = in_order("ttft_ms", [50, 60, 70, 90, slow, slow, 60, 50, 50, 60, 70, 90])
    document, told = ran({**RATES, "repeats": 3}, arms)
    assert [run["label"] for run in told["progress"]] == [
        f"{rate} requests/s" for rate in (100, 200, 300, 400, 400, 300, 200, 100, 100, 200, 300, 400)
    ]
    rows = document["summary"]["points"]
    assert [row["figures"]["ttft_p95_ms"]["median"] for row in rows] == [50, 60, 70, 90]
    assert [(row["kept"], row["runs"]) for row in rows] == [(True, 3)] * 4
    assert has(document["summary"], "Knee", knee=None, beyond=None, keeping=[])


@pytest.mark.parametrize(
    ("repeats", "ttft", "runs"),
    [
        (1, [50, 60, 900], [1, 1, 1]),
        (2, [50, 60, 900, 900, 60, 50], [2, 2, 2]),
        (2, [50, 900, 60, 50, 60, 900, 900], [2, 2, 2, 2]),  # 200 requests/s was slow in the first round only
    ],
)
def test_the_rate_is_doubled_until_the_limits_are_exceeded(repeats: int, ttft: list[float], runs: list[int]) -> None:
    sweep = {"setting": "rate_per_s", "from": 100, "seconds": 0.5}
    document, told = ran({**RATES, "repeats": repeats, "sweep": sweep}, in_order("ttft_ms", ttft))
    assert told["rounds"] == 0
    assert document["asked"] == [100 * 2**power for power in range(len(document["points"]))]
    assert runs_of(document) == runs
    assert document["doubles"] and document["summary"]["knee"] == len(runs) - 2


def test_a_rate_is_doubled_while_one_arm_keeps_its_limits_and_as_far_as_a_scenario_may_send() -> None:
    def figures(arm: MadeUpArm) -> dict[str, float]:
        return {"ttft_ms": 900.0 if arm.knobs.prefill_max_tokens else 5.0}

    sweep = {"setting": "rate_per_s", "from": 100, "seconds": 4}
    body = {**RATES, "repeats": 1, "sweep": sweep, "b": {"knobs": {"prefill_max_tokens": 64}}}
    document, _ = ran(body, MadeUpArms(figures))
    assert document["asked"] == [100, 200, 400, 800]
    for name in ("points", "b_points"):
        assert [point["requests"] for point in document[name]] == [400, 800, 1000, 1000]


@pytest.mark.parametrize(("slow", "rounds"), [(900, 2), (300, 1)])
def test_rates_that_contradict_each_other_are_measured_again(slow: float, rounds: int) -> None:
    """200 requests/s was slow twice; it is repeated until its median keeps the limits and is not clearly worse."""
    arms = in_order("ttft_ms", [50, slow, 70, 80, 80, 70, slow, 50, *(60, 70, 80), *(80, 70, 60)])
    document, told = ran({**RATES, "repeats": 2}, arms)
    assert runs_of(document) == [2, *[2 + rounds] * 3]
    again = [(run["label"], run["repeat"], run["state"]) for run in told["progress"][8:]]
    assert again == [
        (f"{rate} requests/s", number, "done")
        for number, rates in ((3, (200, 300, 400)), (4, (400, 300, 200)))[:rounds]
        for rate in rates
    ]
    assert [row["kept"] for row in document["summary"]["points"]] == [True] * 4
    assert has(document["summary"], "Knee", keeping=[], breaking=[])
    assert text_report(document)[0].endswith(f"2 to {2 + rounds} runs a value")


@pytest.mark.parametrize(("repeats", "most"), [(1, 2), (2, 4), (12, 20)])
def test_rates_that_go_on_contradicting_each_other_are_said_to(repeats: int, most: int) -> None:
    """200 requests/s is slow each time. The extra rounds, up to twice the repeats or 20, do not include 100 requests/s."""
    rounds = [(50, 900, 70, 80), (80, 70, 900, 50)]
    extra = [(900, 70, 80), (80, 70, 900)]
    values = [rounds[number % 2] for number in range(repeats)] + [extra[number % 2] for number in range(repeats, most)]
    document, _ = ran({**RATES, "repeats": repeats}, in_order("ttft_ms", itertools.chain(*values)))
    assert runs_of(document) == [repeats, most, most, most]
    assert document["summary"]["knee"] == 0
    assert has(document["summary"], "Knee", keeping=[300, 400], breaking=[200])


def test_values_of_a_setting_need_not_rise_and_are_not_measured_again() -> None:
    document, _ = ran(BATCHES, in_order("ttft_ms", [900, 70, 50, 50, 70, 900]))
    assert runs_of(document) == [2, 2, 2]
    assert not has(document["summary"], "Falling")


@pytest.fixture
def told(engine: FakeEngine) -> Callable[[Any], list[Any]]:
    """Runs a job; returns its result so far as reported when each run begins, and at the end."""

    def run(body: Any) -> list[Any]:
        def figures(arm: MadeUpArm) -> dict[str, float]:
            seen.append(lab.describe()["state"]["so_far"])
            return {}

        seen: list[Any] = []
        lab = fake_lab(engine, MadeUpArms(figures))
        document, end = ran(body, lab=lab)
        return [*seen, end["so_far"], document]

    return run


def test_a_sweep_tells_its_result_so_far(told: Callable[[Any], list[Any]]) -> None:
    own = {"traffic": {"requests": [[0, 5, 3], [0.01, 5, 3]]}, "repeats": 2}
    *seen, document = told({**own, "sweep": BATCHES["sweep"]})
    assert seen[0] is None
    rows = [[row["runs"] for row in so_far["summary"]["points"]] for so_far in seen[1:]]
    assert rows == [[1], [1, 1], [1, 1, 1], [1, 1, 2], [1, 2, 2], [2, 2, 2]]
    assert list(map(runs_of, seen[1:])) == rows
    assert all(parse_result(json.dumps(so_far).encode()) == so_far for so_far in seen[1:])
    assert "traffic" not in seen[-1]
    assert {**seen[-1], "created": "", "traffic": document["traffic"]} == {**document, "created": ""}


def test_a_search_tells_its_result_so_far(told: Callable[[Any], list[Any]]) -> None:
    *seen, document = told({**BODY, "repeats": 1, "find": FIND})
    assert seen[0] is None
    values = [[point["value"] for point in so_far["points"]] for so_far in seen[1:]]
    assert values == [[None], [None, 32], [None, 32, 48], [None, 32, 48, 64]]
    assert [so_far["summary"]["ended"] for so_far in seen[1:]] == [False, False, False, True]
    assert has(seen[1]["summary"], "Unfinished", low=16, high=64)
    assert {**seen[-1], "created": ""} == {**document, "created": ""}


def test_nothing_is_told_before_a_value_is_measured(engine: FakeEngine) -> None:
    def figures(arm: MadeUpArm) -> dict[str, float]:
        assert lab.describe()["state"]["so_far"] is None
        lab.stop()
        return {}

    lab = fake_lab(engine, MadeUpArms(figures))
    told = ended(lab.start(BATCHES))
    assert (told["state"], told["so_far"], told["result"]) == ("stopped", None, None)


def test_a_search_tries_values_until_none_is_left() -> None:
    arms = MadeUpArms()
    document, told = ran({**BODY, "find": FIND}, arms)
    assert (told["state"], told["kind"]) == ("done", "find")
    assert document["grid"] == [16, 24, 32, 48, 64, None]
    assert [point["value"] for point in document["points"]] == [None, 32, 48, 64]
    assert document["summary"]["answer"] is None
    assert document["summary"]["closest"] is not None
    assert len(arms.arms) == 1
    document["points"].reverse()
    with pytest.raises(ValueError, match="the tries in the result differ"):
        parse_result(json.dumps(document).encode())


def test_a_search_measures_a_value_until_its_verdict_is_sure() -> None:
    """A limit is exceeded in one of the first two runs of 24, and in every second run of 32."""
    gaps = [50.0] * 2 + [5.0, 50.0, 5.0, 5.0] + [5.0, 50.0] * 3
    document, _ = ran({**BODY, "find": {**FIND, "ttft_p95_ms": 10, "to": 32}}, in_order("itl_ms", gaps))
    rows = document["summary"]["points"]
    assert [(row["value"], row["runs"], row["within"]["itl_p99_ms"], row["sure"]) for row in rows] == [
        (None, 2, 0, True), (24, 4, 3, True), (32, 6, 3, False)
    ]  # fmt: skip
    assert runs_of(document) == [2, 4, 6]
    table = points_csv(document).decode().splitlines()
    assert [line.split(",")[:4] for line in table] == [
        ["prefill_max_tokens", "kept", "runs", "sure"],
        ["", "False", "2", "True"], ["24", "True", "4", "True"], ["32", "False", "6", "False"],
    ]  # fmt: skip
    assert text_report(document)[0].endswith("2 to 6 runs a value")
    assert [line.split("  ")[-1].strip() for line in text_report(document)[-2:]] == ["kept", "exceeded, not sure"]


def test_the_command_line_prints_sentences_or_csv_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["token-budget", "--model", "tiny-chat", "--num-requests", "2", "--max-new-tokens", "3", "--repeats", "1"]
    sweep = [*quick, "--sweep", "batch", "--from", "1", "--to", "2", "--points", "2"]
    saved, report = tmp_path / "sweep.json", tmp_path / "sweep.html"
    assert main([*sweep, "--save", str(saved), "--report", str(report)], MadeUpArms()) == 0
    printed = capsys.readouterr()
    summary = parse_result(saved.read_bytes())["summary"]
    assert all(line in printed.out for line in sentences(summary))
    told = ["run 1 of 2, round 1, max batch 1", "run 2 of 2, round 1, max batch 2"]
    assert [line.partition(":")[0] for line in printed.err.splitlines()] == told
    assert all(as_html(found["words"]) in report.read_text() for found in summary["findings"])
    assert main([*sweep, "--csv"], MadeUpArms()) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("max_batch_size,kept,runs,output_tokens_per_s,output_tokens_per_s_min")
    assert [line.partition(",")[0] for line in table[1:]] == ["1", "2"]
    find = ["--find", "prefill-budget", "--itl-p99", "1e5", "--ttft-p95", "1e5", "--json"]
    assert main([*quick, *find], MadeUpArms()) == 0
    found = parse_result(capsys.readouterr().out.encode())
    assert (found["summary"]["answer"], [point["value"] for point in found["points"]]) == (0, [None])


def test_the_result_of_a_rate_sweep_tells_what_was_asked_not_its_first_value() -> None:
    rates = {"setting": "rate_per_s", "from": 100, "to": 300, "points": 2, "seconds": 0.5}
    document, _ = ran({"scenario": "poisson", "repeats": 1, "params": {"max_new_tokens": 2}, "sweep": rates})
    assert [point["requests"] for point in document["points"]] == [50, 150]
    assert (document["seconds"], document["params"]) == (0.5, SCENARIOS["poisson"].params() | {"max_new_tokens": 2})
    requests = [[0, 4, 2], [0.2, 4, 2]]
    del rates["seconds"]
    document, _ = ran({"repeats": 1, "traffic": {"name": "mine", "requests": requests}, "sweep": rates})
    assert document["traffic"]["requests"] == requests


class Interrupted(io.StringIO):
    """Standard error of somebody who presses Ctrl-C when told of the second run."""

    def write(self, text: str) -> int:
        if text.startswith("run 2"):
            raise KeyboardInterrupt
        return super().write(text)


def test_an_interrupted_sweep_writes_what_it_has_measured(tmp_path: Path) -> None:
    runs = itertools.count(1)

    def figures(arm: MadeUpArm) -> dict[str, float]:
        if next(runs) == 3:
            assert arm.stop.wait(60)
        return {}

    file = tmp_path / "sweep.json"
    flags = ["--sweep", "batch", "--from", "1", "--to", "64", "--points", "7", "--repeats", "1", "--num-requests", "2"]
    with contextlib.redirect_stderr(Interrupted()) as told:
        assert main(["token-budget", *flags, "--save", str(file)], MadeUpArms(figures)) == 130
    assert [point["value"] for point in parse_result(file.read_bytes())["points"]] == [1, 2]
    assert "interrupted" in told.getvalue()
