"""The summary of a result: metrics, sentences that do not overstate, and the check of a document from a file."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from roseplay.extras.lab.report import html_report
from roseplay.extras.lab.results import parse_result, summary_of
from roseplay.extras.lab.words import sentences
from roseplay.formats.segments import plain
from roseplay.traffic.scenarios import SCENARIOS
from tests.extras.lab.findings import finding

FILE = Path(__file__).with_name("result.json")


@pytest.fixture
def document() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in found["metrics"]}


def request(index: int, ttft_ms: float, itl_ms: float | None = 5.0, **more: Any) -> dict[str, Any]:
    return {
        "index": index, "arrival_ms": 0.0, "intended_arrival_ms": 0.0, "ttft_from_arrival_ms": None, "prompt_tokens": 10, "completion_tokens": 4, "submit_ms": 0.1, "queue_ms": 1.0,
        "ttft_ms": ttft_ms, "tpot_ms": itl_ms, "e2e_ms": 50.0, "itl_p99_ms": itl_ms, "itl_max_ms": itl_ms, "reason": "length",
        **more,
    }  # fmt: skip


def made(document: dict[str, Any], a: list[list[float]], b: list[list[float]], **about: Any) -> dict[str, Any]:
    """The document with runs that have these ITL gaps, one list per run, and everything else equal.

    ``of_a`` and ``of_b`` are what else differs: fields of an arm's runs, and of its requests.
    """
    differing = {"A": about.pop("of_a", {}), "B": about.pop("of_b", {})}
    runs = []
    for arm, gaps_of_runs in (("A", a), ("B", b)):
        for repeat, gaps in enumerate(gaps_of_runs, 1):
            run: dict[str, Any] = {
                "arm": arm, "repeat": repeat, "seconds": 1.0, "requests": [request(0, 100.0), request(1, 100.0)],
                "itl_ms": gaps, "steps": [[0.0, 1.0, 20, 0, 1, 0, 2]], "tokens_sha256": "x", "saved_tokens": 0,
                "preemptions": 0, "recomputed_tokens": None, "moved_mb": None,
            }  # fmt: skip
            for name, value in differing[arm].items():
                for part in [run] if name in run else run["requests"]:
                    part[name] = copy.deepcopy(value)
            runs.append(run)
    return {**document, "runs": runs, "repeats": len(a), **about}


def test_figures_are_medians_over_repeats_with_their_range(document) -> None:
    found = rows(summary_of(made(document, [[10.0], [30.0], [20.0]], [[5.0], [7.0], [6.0]])))
    assert {key: found["itl_p99_ms"][key] for key in ("a", "b", "a_range", "b_range", "ratio")} == {
        "a": 20.0, "b": 6.0, "a_range": [10.0, 30.0], "b_range": [5.0, 7.0], "ratio": 0.3,
    }  # fmt: skip
    assert found["output_tokens_per_s"]["a"] == 8.0
    assert found["computed_tokens"]["a"] == 20
    assert found["preemptions"]["ratio"] is None
    assert found["itl_p99_ms"]["better"] == "lower"


def test_the_pools_are_a_row_where_they_differ(document) -> None:
    assert "kv_pool_tokens" not in rows(summary_of(document))
    document["arms"]["B"]["config"]["num_blocks"] = 11
    document["arms"]["B"]["config"]["block_size"] = 8
    assert rows(summary_of(document))["kv_pool_tokens"]["b"] == 80


def test_effect_price_and_work_are_told(document) -> None:
    first, second, third = sentences(summary_of(document))
    assert first == "ITL p99 is 14.0 ms in B and 94.2 ms in A (×0.15), with max batch 16."
    assert second.startswith("The price: TTFT p95 is 401 ms in B and 291 ms in A")
    assert third.startswith("The same work: every run gave the same tokens; throughput is 766 tok/s in B")


def test_what_lies_within_the_spread_is_not_claimed(document) -> None:
    inside = made(document, [[10.0], [20.0], [30.0]], [[9.0], [12.0], [15.0]])
    first, second, third = sentences(summary_of(inside))
    assert (
        first
        == "No clear effect: ITL p99 is 12 ms in B and 20 ms in A (×0.60), within the spread of 3 repeats, with max batch 16."
    )
    assert second.startswith(
        "The price: TTFT p95 is 100 ms in B and 100 ms in A (×1.00), within the spread of 3 repeats; "
    )
    assert "throughput ×1.00 (within the spread)" in third
    apart = made(document, [[10.0], [20.0], [30.0]], [[7.0], [8.0], [9.0]])
    assert sentences(summary_of(apart))[0].startswith("ITL p99 is 8 ms in B and 20 ms in A")
    near = made(document, [[10.0], [10.01]], [[10.1], [10.2]])
    assert sentences(summary_of(near))[0].startswith("No clear effect")


def test_a_wait_before_the_call_of_submit_is_told(document) -> None:
    """Clients that block get their first token soon after the submit, but long after they wanted to send it."""
    of_a = {"ttft_ms": 6.0, "ttft_from_arrival_ms": 480.0, "submit_ms": 6.0}
    of_b = {"ttft_ms": 90.0, "ttft_from_arrival_ms": 90.0}
    gaps = [[10.0], [10.0]]
    found = summary_of(made(document, gaps, gaps, scenario="admission", of_a=of_a, of_b=of_b))
    assert rows(found)["ttft_p95_ms"]["verdict"] == "worse"
    assert rows(found)["ttft_from_arrival_p95_ms"]["verdict"] == "better"
    assert "; TTFT from arrival p95 is 90 ms in B and 480 ms in A (×0.19); " in sentences(found)[1]


def test_one_run_each_is_told_to_be_repeated(document) -> None:
    assert "repeat it" in sentences(summary_of(made(document, [[30.0]], [[10.0]])))[0]
    first, second, _ = sentences(summary_of(made(document, [[10.0]], [[9.0]])))
    assert first.startswith("No clear effect")
    assert "TTFT p99 ×1.00 (too close for one run each)" in second


def test_a_worse_b_has_no_price_but_a_return(document) -> None:
    swapped = made(document, [[10.0], [11.0]], [[30.0], [31.0]], of_b={"seconds": 0.5, "ttft_ms": 50.0})
    first, second, _ = sentences(summary_of(swapped))
    assert first == "ITL p99 is 30.5 ms in B and 10.5 ms in A (×2.90), with max batch 16."
    assert second.startswith("In return: TTFT p95 is 50 ms in B and 100 ms in A (×0.50); ")


def test_the_price_is_the_scenarios_and_no_substitute(document) -> None:
    """It is stated with its numbers even if it is unclear or went the other way; other losses follow it."""
    of_b = {"ttft_ms": 240.0, "e2e_ms": 900.0, "tpot_ms": 90.0}
    paid = made(document, [[30.0], [31.0]], [[10.0], [11.0]], of_a={"e2e_ms": 300.0}, of_b=of_b)
    for run in paid["runs"]:
        run["requests"][0]["ttft_ms"] += 300 * (run["repeat"] == 2)
    second = sentences(summary_of(paid))[1]
    assert second.startswith("The price: TTFT p95 is ")
    assert ", within the spread of 2 repeats; TTFT p99 " in second
    assert "; E2E p99 ×3.00; also worse in B: TPOT p50 ×18.0." in second
    against = made(document, [[30.0], [31.0]], [[10.0], [11.0]], of_a={"ttft_ms": 200.0}, of_b={"ttft_ms": 50.0})
    assert sentences(summary_of(against))[1].startswith(
        "The price: TTFT p95 was expected to be worse in B but is better: 50 ms in B and 200 ms in A (×0.25); "
    )


def test_another_figure_is_told_where_the_watched_one_stands_still(document) -> None:
    """E2E is better, too, but by less than preemptions are."""
    gaps = [[10.0], [10.0]]
    still = made(document, gaps, gaps, of_a={"preemptions": 7, "e2e_ms": 100.0})
    assert sentences(summary_of(still))[0] == (
        "ITL p99 is 10 ms in B and 10 ms in A (×1.00), within the spread of 2 repeats, but preemptions are 0 in B and 7 in A"
        " (×0), with max batch 16."
    )


def test_other_tokens_are_told(document) -> None:
    document["runs"][0]["tokens_sha256"] = "other"
    found = summary_of(document)
    assert found["same_tokens"] is False
    assert sentences(found)[2].startswith("Nearly the same work")


def test_no_gaps_and_no_time_are_no_error(document) -> None:
    nothing = {"seconds": 0.0, "requests": [request(0, 1.0, None)]}
    empty = made(document, [[]], [[]], of_a=nothing, of_b=nothing)
    summary = summary_of(empty)
    found = rows(summary)
    assert (found["itl_p99_ms"]["a"], found["itl_p99_ms"]["ratio"]) == (None, None)
    assert found["tpot_p50_ms"]["b_range"] == [None, None]
    assert found["output_tokens_per_s"]["a"] == 0
    assert "could not be measured" in sentences(summary)[0]
    assert "could not be measured" in html_report({**empty, "summary": summary})


def test_a_document_from_a_file_is_checked_and_summed_up_anew(document) -> None:
    document["summary"] = {"findings": [{"words": [["Buy this.", ""]]}]}
    assert sentences(parse_result(json.dumps(document).encode())["summary"])[0].startswith("ITL p99")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(roseplay_lab=1), "not a result of the lab"),
        (lambda d: d.pop("arms"), "arms is missing"),
        (lambda d: d.update(runs={}), "runs should be a valid list"),
        (lambda d: d.update(runs=[]), "no run of arm A"),
        (lambda d: d.update(runs=[r for r in d["runs"] if r["arm"] == "A"]), "no run of arm B"),
        (lambda d: d.update(repeats=1000), "repeats should be less than or equal to 20"),
        (lambda d: d.update(title=5), "title should be a valid string"),
        (lambda d: d["runs"][0].update(arm="C"), "runs 1, arm should be 'A' or 'B'"),
        (lambda d: d["runs"][1]["itl_ms"].append(-1), "runs 2, itl_ms [0-9]+ should be greater than or equal to 0"),
        (lambda d: d["runs"][1]["itl_ms"].append("1"), "should be a valid number"),
        (lambda d: d["runs"][1]["itl_ms"].append(10**400), "should be a valid number"),
        (lambda d: d["runs"][1]["steps"].append([1, 2]), "runs 2, steps [0-9]+ 3 is missing"),
        (lambda d: d["runs"][1]["requests"][3].pop("ttft_ms"), "runs 2, requests 4, ttft_ms is missing"),
        (lambda d: d["arms"]["A"].pop("config"), "arms, A, config is missing"),
        (lambda d: d["arms"]["A"]["knobs"].update(deep={"x": 1}), "knobs, deep should be a number"),
        (lambda d: d["limits"].update(ttft_ms=None), "limits, ttft_ms should be a valid number"),
    ],
)
def test_a_document_that_lacks_something_is_refused_with_a_sentence(document, change, words) -> None:
    change(document)
    with pytest.raises(ValueError, match=words) as caught:
        parse_result(json.dumps(document).encode())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[1, NaN]", b"[" * 100_000, b"[]", b"5"])
def test_what_is_no_document_is_refused_with_a_sentence(text: bytes) -> None:
    with pytest.raises(
        ValueError, match="^(this is not a result of the lab|the file is not JSON|the file has a number)"
    ):
        parse_result(text)


def test_the_report_stands_alone_and_shows_no_document_s_markup(document) -> None:
    document["title"] = document["model"] = document["name"] = "<img src=x onerror=alert(1)>"
    document["environment"]["<script>alert(2)</script>"] = "</script><script>alert(3)</script>"
    report = html_report(parse_result(json.dumps(document).encode()))
    assert "<img src=x" not in report
    assert "alert(2)</script>" not in report
    assert "alert(3)</script>" not in report
    assert "&lt;img src=x onerror=alert(1)&gt;" in report
    assert '<script src="' not in report
    assert "ITL p99 is 14.0 ms in B" in report


@pytest.mark.parametrize(("device", "said"), [("cpu", "off"), ("cuda", "on")])
def test_the_report_has_graphs_off_where_the_page_has_them_off(document, device: str, said: str) -> None:
    document["device"] = device
    for arm in document["arms"].values():
        arm["knobs"].update(cuda_graphs=True, overlap=True)
    report = html_report(parse_result(json.dumps(document).encode()))
    for name in ("cuda_graphs", "overlap"):
        assert f'<span class="quiet">{name}</span></td><td>{said}</td><td>{said}</td>' in report


def test_the_report_marks_the_settings_that_differ_whatever_is_said_of_them(document) -> None:
    for arm in document["arms"].values():
        arm["differs"] = [f"no setting {number}" for number in range(100)] + ["prefill_max_tokens"]
    report = html_report(parse_result(json.dumps(document).encode()))
    assert report.count('<tr class="differs">') == 1


def test_settings_that_differ_come_first(document) -> None:
    document["arms"]["B"]["knobs"]["prefill_max_tokens"] = None
    report = html_report(parse_result(json.dumps(document).encode()))
    table = report[report.index("<h2>Settings ") :]
    names = re.findall(r'<tr[^>]*><td>[^<]* <span class="quiet">(\w+)</span></td>', table)
    differs = document["arms"]["A"]["differs"]
    assert differs and names[: len(differs)] == differs
    assert "<td>unlimited</td>" in table


def test_waiting_times_are_those_of_each_tenant(document) -> None:
    def of(small: float, large: float) -> dict[str, Any]:
        flood = [request(number, 100.0, queue_ms=large, tenant="flood") for number in range(7)]
        return {"requests": [*flood, request(7, 100.0, queue_ms=small, tenant="quiet")]}

    gaps, of_arms = [[5.0], [5.0]], {"of_a": of(400.0, 420.0), "of_b": of(10.0, 500.0)}
    fair = made(document, gaps, gaps, scenario="fair-tenants", **of_arms)
    found = summary_of(fair)
    assert [rows(found)[f"{which}_tenant_queue_p50_ms"][arm] for which in ("small", "large") for arm in "ab"] == [
        400.0, 10.0, 420.0, 500.0,
    ]  # fmt: skip
    assert (
        sentences(found)[0]
        == "Queue time p50 of the smallest tenant is 10 ms in B and 400 ms in A (×0.025), with max batch 16."
    )
    assert sentences(found)[1].startswith(
        "The price: queue time p50 of the largest tenant is 500 ms in B and 420 ms in A (×1.19)"
    )
    assert parse_result(json.dumps({**fair, "summary": found}).encode())["runs"][0]["requests"][0]["tenant"] == "flood"
    of_two = {"requests": [request(0, 1.0, queue_ms=400.0, tenant="b"), request(1, 1.0, queue_ms=10.0, tenant="a")]}
    even = rows(summary_of(made(document, gaps, gaps, of_a=of_two, of_b=of_two)))  # with as many tokens each
    assert [even[f"{which}_tenant_queue_p50_ms"]["a"] for which in ("small", "large")] == [10.0, 400.0]


def test_requests_without_tenants_have_no_figures_of_tenants(document) -> None:
    assert not any("tenant" in name for name in rows(summary_of(document)))


def test_the_picture_shows_a_typical_run_of_each_arm_with_the_gaps_of_every_answer(document) -> None:
    gaps = [10.0, 0.0, 20.0, 5.0, 5.0, 90.0]  # two answers of four tokens; two of the first one came together
    slow = {"requests": [request(0, 100.0), request(1, 150.0, arrival_ms=7.0)]}
    summary = summary_of(made(document, [gaps], [[5.0] * 6], of_a=slow))
    a, b = summary["pair"]["sides"]
    assert a["gaps"] == [[110, 10.0], [130, 20.0], [162, 5.0], [167, 5.0], [257, 90.0]]
    figures = {one["title"]: (one["before"], one["after"], one["mark"]) for one in summary["pair"]["figures"]}
    assert summary["pair"]["longest"] == "ITL p99" and figures["ITL p99"][0] == "87.2"
    assert a["longest"] == [257, 87.2], "at the gap that is nearest to the figure of the sentence"
    assert a["firsts"] == [100.0, 157.0]
    assert len(b["gaps"]) == 3, "those of both answers look alike"
    assert [plain(side["title"]) for side in (a, b)] == ["A: Prefill budget ∞", "B: Prefill budget 64"]
    assert figures["ITL p99"][2] == "effect"
    assert summary["pair"]["sentence"] == summary["findings"][0]["words"]
    assert summary_of(made(document, [[5.0]], [[5.0]]))["pair"] is None, "gaps without their answers have no times"


@pytest.mark.parametrize("seed", range(12))
def test_the_picture_of_runs_drawn_at_random_shows_the_one_of_median_length(document, seed: int) -> None:
    draw = random.Random(seed)
    found = made(
        document, *([[draw.choice([0.0, 4.0, 9.0, 30.0, 80.0]) for _ in range(6)] for _ in range(3)] for _ in "AB")
    )
    for run in found["runs"]:
        run["seconds"] = draw.uniform(1, 9)
        run["requests"] = [request(n, draw.uniform(20, 90), arrival_ms=draw.uniform(0, 50)) for n in range(2)]
    pair = summary_of(found)["pair"]
    watched = {row["title"]: row for row in summary_of(found)["metrics"]}.get(pair["longest"])
    assert pair["about"].endswith("; of each, the run with the median length")
    for arm, side in zip("AB", pair["sides"], strict=True):
        run = sorted((one for one in found["runs"] if one["arm"] == arm), key=lambda one: one["seconds"])[1]
        gaps = []
        for n, one in enumerate(run["requests"]):
            t = one["arrival_ms"] + one["ttft_ms"]
            for ms in run["itl_ms"][3 * n : 3 * n + 3]:
                t += ms
                gaps += [(t, ms)] * (ms > 0)
        assert side["firsts"] == sorted(round(one["arrival_ms"] + one["ttft_ms"], 1) for one in run["requests"])
        assert {(round(t), ms) for t, ms in gaps} == {(round(t), ms) for t, ms in side["gaps"]}
        wanted = max(ms for _, ms in gaps) if watched is None else watched[arm.lower()]
        nearest = min(abs(ms - wanted) for _, ms in gaps)
        at, told = side["longest"]
        assert told == pytest.approx(wanted, abs=0.01)
        assert at in {round(t) for t, ms in gaps if abs(ms - wanted) == nearest}


@pytest.mark.parametrize("seed", range(60))
def test_effect_price_and_work_of_runs_drawn_at_random(document, seed: int) -> None:
    """They are what the scenario is about and what differs most; no figure is told twice."""
    draw = random.Random(seed)

    def about() -> dict[str, Any]:
        found = {
            name: draw.choice([40.0, 44.0, 100.0, 130.0])
            for name in ("ttft_ms", "e2e_ms", "submit_ms", "tpot_ms", "queue_ms")
        }
        found |= {"seconds": draw.choice([1.0, 1.0, 2.0]), "ttft_from_arrival_ms": draw.choice([None, 40.0, 500.0])}
        return {
            **found,
            "preemptions": draw.choice([0, 0, 3]),
            "saved_tokens": draw.choice([0, 5]),
            "moved_mb": draw.choice([None, 0.0, 2.0]),
        }

    gaps = [[[draw.choice([3.0, 9.0, 90.0])] * 2 for _ in range(2)] for _ in "AB"]
    scenario = draw.choice([*SCENARIOS, "unknown"])
    found = summary_of(made(document, *gaps, scenario=scenario, of_a=about(), of_b=about()))
    figures, known = rows(found), SCENARIOS.get(scenario)
    watch, priced = (known.watch, known.price) if known and known.watch in figures else (None, None)
    special = {"longest_ttft_ms", "small_tenant_queue_p50_ms", "large_tenant_queue_p50_ms"}

    def largest(verdicts: tuple[str, ...], without: set[str | None]) -> list[str]:
        """The figures of these verdicts that differ most."""
        sizes = {
            name: abs(math.log(row["ratio"])) if row["ratio"] else math.inf
            for name, row in figures.items() if row["verdict"] in verdicts and name not in without
        }  # fmt: skip
        most = max(sizes.values(), default=0.0)
        return [name for name, size in sizes.items() if size == most]

    effect, price, work = (finding(found, kind) for kind in ("Effect", "Price", "Work"))
    told = effect["row"] and effect["row"]["name"]
    assert effect["row"] in (None, figures.get(told)), "the row of the table"
    if watch and figures[watch]["verdict"] in ("better", "worse"):
        assert (told, effect["watched"]) == (watch, None)
    else:
        verdicts = ("better",) if watch else ("better", "worse")
        gains = largest(verdicts, {*special, "computed_tokens", "saved_tokens", "kv_pool_tokens", "mask_ms"})
        assert told in (gains or [None])
        watched = (watch or "itl_p99_ms") if watch or not told else None
        assert (effect["watched"] and effect["watched"]["name"]) == watched
    assert not effect["once"]
    assert price["wanted"] == ("better" if told and effect["row"]["verdict"] == "worse" else "worse")
    before = {told}
    named = priced if priced in figures and priced not in before else None
    before.add(named)
    always = [
        name for name in ("ttft_p99_ms", "e2e_p99_ms") if figures[name]["verdict"] != "unknown" and name not in before
    ]
    before |= {*always}
    arrival = figures["ttft_from_arrival_p95_ms"]
    waited = arrival["verdict"] not in ("unknown", figures["ttft_p95_ms"]["verdict"]) and arrival["name"] not in before
    before |= {arrival["name"]} if waited else set()
    others = largest((price["wanted"],), {*special, *before})
    assert (price["named"] and price["named"]["name"]) == named
    assert [row["name"] for row in price["always"]] == always
    assert (price["from_arrival"] is not None) == waited
    assert (price["largest"] and price["largest"]["name"]) in (others or [None])
    before |= {price["largest"]["name"]} if price["largest"] else set()
    assert [row["name"] for row in work["rows"]] == [
        name for name in ("output_tokens_per_s", "goodput_req_s") if name not in before
    ]


def test_the_views_of_a_report_are_below_its_sentences(document) -> None:
    report = html_report(parse_result(json.dumps(document).encode()))
    assert report.index("<ol>") < report.index('class="views"') < report.index("<h2>Result")
    assert '"longest": [' in report
