"""The two arms of a comparison in one picture: a typical run of each, and the figures that its sentences name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice

from roseplay.extras.lab.document import ArmSettings, ComparisonResult, Run
from roseplay.extras.lab.findings.comparison import Effect, Price
from roseplay.extras.lab.findings.finding import Finding, Row
from roseplay.extras.lab.types import ARMS, PARTS, ArmName, Summary
from roseplay.formats.numbers import many, number_text
from roseplay.formats.segments import Segments
from roseplay.traffic.pair import Mark, Pair, PairFigure, Side, figure, side, title

_OF_GAPS = ("itl_p50_ms", "itl_p95_ms", "itl_p99_ms", "itl_max_ms")  # one gap is as long: it is ringed


def comparison_pair(document: ComparisonResult, summary: Summary, findings: Sequence[Finding]) -> Pair | None:
    """Returns the picture of a comparison from its summary; ``None`` if the times of its tokens are not known."""
    effect = next(finding for finding in findings if isinstance(finding, Effect))
    price = next(finding for finding in findings if isinstance(finding, Price))
    rows = [Row(**row) for row in summary["metrics"]]
    shown = effect.row or effect.watched
    ringed = shown if shown is not None and shown.name in _OF_GAPS else None
    a, b = [_side(document, arm, ringed) for arm in ARMS]
    if a is None or b is None:
        return None
    several = "" if document["repeats"] == 1 else "; of each, the run with the median length"
    requests = many(len(_typical_run(document, "A")["requests"]), "request")
    return {
        "sentence": summary["findings"][findings.index(effect)]["words"],
        "about": f"{document['title']}: {requests}, {document['model']} on {document['device']}{several}",
        "shows": "of all answers",
        "longest": ringed.title if ringed else "longest pause",
        "moment": "start",
        "unit": "ms",
        "sides": [a, b],
        "figures": _figures(rows, shown, price),
    }


def differences(arm: ArmSettings) -> Segments:
    """Returns the settings in which an arm differs from the other."""
    values = {name: value for part in PARTS for name, value in arm.get(part, {}).items()}
    return title({name: values.get(name) for name in arm.get("differs", ())})


def _typical_run(document: ComparisonResult, arm: ArmName) -> Run:
    runs = sorted((run for run in document["runs"] if run["arm"] == arm), key=lambda run: run["seconds"])
    return runs[(len(runs) - 1) // 2]


def _side(document: ComparisonResult, arm: ArmName, ringed: Row | None) -> Side | None:
    run, gaps, readers = _typical_run(document, arm), [], []
    remaining = iter(run["itl_ms"])
    if len(run["itl_ms"]) != sum(max(0, request["completion_tokens"] - 1) for request in run["requests"]):
        return None
    for request in run["requests"]:
        intervals = [*islice(remaining, max(0, int(request["completion_tokens"]) - 1))]
        if request["ttft_ms"] is not None:
            times = [*accumulate(intervals, initial=request["arrival_ms"] + request["ttft_ms"])]
            gaps += [(t, ms) for t, ms in zip(times[1:], intervals, strict=True) if ms]
            readers.append(times)
    firsts = [r["arrival_ms"] + r["ttft_ms"] for r in run["requests"] if r["ttft_ms"] is not None]
    named: Segments = [[f"{arm}: ", ""], *differences(document["arms"][arm])]
    ms = getattr(ringed, arm.lower(), None)  # a figure of gaps, ringed at the one that is nearest to it
    at = max(gaps, key=lambda gap: gap[1] if ms is None else -abs(gap[1] - ms), default=None)
    steps = [(t0, t1, prompt + decode) for t0, t1, prompt, decode, *_ in run["steps"] if prompt]
    reader = next((times for times in readers if at and at[0] in times), ())
    return side(named, gaps, at and (at[0], at[1] if ms is None else ms), firsts, steps=steps, reader=reader)


def _figures(rows: list[Row], shown: Row | None, price: Price) -> list[PairFigure]:
    chosen: dict[str, tuple[Row, Mark]] = {}
    if shown is not None:
        chosen[shown.name] = shown, "effect" if shown.clear else "same"
    for row in price.rows[:1]:
        of_price: Mark = "price" if price.wanted == "worse" else "gain"
        chosen.setdefault(row.name, (row, of_price if row.verdict == price.wanted else "" if row.clear else "same"))
    for row in rows:
        if row.name == "output_tokens_per_s":
            chosen.setdefault(row.name, (row, "" if row.clear else "same"))
    return [figure(row.title, number_text(row.a), number_text(row.b), row.unit, mark) for row, mark in chosen.values()]
