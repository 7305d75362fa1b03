"""The sentences, the table, the report and the terminal agree on a result, whatever was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roseplay.extras.lab.findings import comparison, finding, regret, search, sweep
from roseplay.extras.lab.findings.finding import Level, Row, rows_between
from roseplay.extras.lab.report import result_table, text_report
from roseplay.extras.lab.results import summary_of
from roseplay.extras.lab.words import brief, changes, facts, level_text, words_of
from roseplay.formats.numbers import amount_text, number_text, ratio_text
from roseplay.traffic.difference import least_ratio
from roseplay.traffic.run_figures import FIGURES
from roseplay.traffic.scenarios import SCENARIOS
from tests.extras.lab.findings import point

DOCUMENT = json.loads(Path(__file__).with_name("result.json").read_text())
TIMES = ("ttft_ms", "ttft_from_arrival_ms", "queue_ms", "tpot_ms", "e2e_ms", "submit_ms", "itl_p99_ms")
# A few levels, so that arms are often equal, overlap or are apart; and arbitrary values for unforeseen cases.
MS = st.one_of(st.sampled_from([0.0, 1.0, 1.04, 1.1, 1.2, 2.0, 30.0]), st.floats(0, 1e5).map(lambda ms: round(ms, 2)))
COUNT = st.sampled_from([0, 1, 20, 21, 4000])


@st.composite
def runs(draw: st.DrawFn, arm: str, repeat: int, missing: frozenset[str]) -> dict[str, Any]:
    requests = [
        {
            "prompt_tokens": 10,
            "completion_tokens": draw(COUNT),
            "arrival_ms": 0.0,
            "reason": "length",
            "itl_max_ms": None,
        }
        | {name: None if name in missing and name != "submit_ms" else draw(MS) for name in TIMES}
        for _ in range(draw(st.integers(1, 2)))
    ]
    return {
        "arm": arm, "repeat": repeat, "seconds": draw(st.sampled_from([0.0, 1.0, 1.03, 5.0])), "requests": requests,
        "itl_ms": draw(st.lists(MS, max_size=3)), "steps": [[0.0, 1.0, draw(COUNT), 0, 1, 0, 2]],
        "tokens_sha256": draw(st.sampled_from("xy")), "saved_tokens": draw(COUNT), "preemptions": draw(COUNT),
        "recomputed_tokens": None, "moved_mb": None,
    }  # fmt: skip


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    repeats = draw(st.integers(1, 3))
    missing = draw(st.frozensets(st.sampled_from(TIMES), max_size=3))
    made = [draw(runs(arm, repeat + 1, missing)) for repeat in range(repeats) for arm in "AB"]
    document = {**DOCUMENT, "scenario": draw(st.sampled_from([*SCENARIOS, "of-another-version"])), "runs": made}
    pool = {"num_blocks": draw(st.sampled_from([65, 257])), "block_size": 16}
    arms = {arm: dict(DOCUMENT["arms"][arm]) for arm in "AB"}
    arms["B"]["config"] = {**arms["B"]["config"], **pool}
    return {**document, "repeats": repeats, "arms": arms}


@settings(max_examples=75, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_sentences_tables_and_reports_agree(document: dict[str, Any]) -> None:
    summary = summary_of(document)
    for row in summary["metrics"]:
        check_verdict(row)
        check_words(Row(**row))
    check_reports({**document, "summary": summary})


def check_words(row: Row) -> None:
    """Words say of a figure what its row says."""
    for clause in (facts(row), brief(row)):
        title = "worst pause" if row.name == "itl_max_ms" else row.title.lower()
        assert clause.lower().startswith(title + " ")
        marked = "within" in clause or "too close" in clause
        assert marked == (row.verdict == "within"), (clause, row)
        assert ("could not be measured" in clause) == (row.verdict == "unknown"), (clause, row)
        if " in B and " in clause:
            b, a = (amount_text(value, row.unit) for value in (row.b, row.a))
            assert f" {b} in B and {a} in A" in clause
        if row.ratio is not None and row.verdict != "unknown":
            assert ratio_text(row.ratio) in clause


def check_verdict(row: dict[str, Any]) -> None:
    """A row has the verdict of its ranges."""
    if row["verdict"] == "unknown":
        assert None in (row["a"], row["b"])
        return
    least = least_ratio(row["repeats"])
    lower = row["b_range"][1] < row["a_range"][0]
    apart = lower or row["a_range"][1] < row["b_range"][0]
    far = row["ratio"] is None or not 0.999 / least < row["ratio"] < 1.001 * least  # the ratio is rounded
    if row["verdict"] == "within":
        assert not (apart and far)
    else:
        assert apart
        assert (row["verdict"] == "better") == (lower == (FIGURES[row["name"]].better == "lower"))


def check_reports(document: dict[str, Any]) -> None:
    """The terminal and the report show the same verdicts."""
    words = {"better": "better", "worse": "worse", "within": "within the spread", "unknown": "–"}
    lines = text_report(document)[-len(document["summary"]["metrics"]) :]
    for row, line, cells in zip(document["summary"]["metrics"], lines, result_table(document)[1:], strict=True):
        said = [ratio_text(row["ratio"]), words[row["verdict"]]]
        assert line.split()[-len(said[1].split()) - 1 :] == [said[0], *said[1].split()]
        assert [*map(str, cells[-2:])] == said
        assert [cell.mark == "better" for cell in cells[1:3]] == [row["verdict"] == "worse", row["verdict"] == "better"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(94.25, "94.3"), (0.125, "0.13"), (99.95, "100.0"), (1234.5, "1\u202f235"), (8.0, "8"), (0.0, "0"), (None, "–")],
)
def test_halves_are_rounded_up_as_the_page_rounds_them(value, text) -> None:
    assert number_text(value) == text


def test_every_finding_has_words() -> None:
    modules = (comparison, finding, regret, search, sweep)
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    findings = {kind for kind in kinds if issubclass(kind, finding.Finding)} - {finding.Finding}
    assert len(findings) > 20
    assert [kind for kind in findings if words_of.dispatch(kind) is words_of.dispatch(object)] == []


def test_what_changed_is_told_as_a_ratio_and_what_did_not_is_marked_or_left_out() -> None:
    before = point(1, ttft_p95_ms=(100, 110), itl_p99_ms=(5, 5))
    after = point(2, ttft_p95_ms=(205, 215), itl_p99_ms=(4.9, 5.1))
    unknown = point(3, ttft_p95_ms=(None, None), itl_p99_ms=(5, 5))
    names = ("ttft_p95_ms", "itl_p99_ms")
    for first, last, told, said in (
        (before, after, names, "TTFT p95 ×2.00, ITL p99 ×1.00 (within the spread)"),
        (after, before, names[:1], "TTFT p95 ×0.50"),
        (unknown, after, names, "ITL p99 ×1.00 (within the spread)"),
        (unknown, after, names[:1], "nothing that could be measured"),
    ):
        assert changes(rows_between(first, last, told)) == said


def test_a_figure_has_its_median_and_range() -> None:
    assert level_text(Level.of(point(1, ttft_p95_ms=(170, 190)), "ttft_p95_ms")) == "180 ms (170–190)"
