"""Reports a result of any kind as a self-contained HTML file or as text: sentences, charts, table, settings, origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from roseplay.config import GPU_KNOBS, SETTINGS, Knobs, catalogue
from roseplay.extras.lab.document import ComparisonResult, FindResult, Result, SweepResult
from roseplay.extras.lab.findings.finding import Row, is_once
from roseplay.extras.lab.points import KNOBS, PROMPT, RATE, arm_points, arms_of, point_rows
from roseplay.extras.lab.types import ARMS, PARTS, Scalar
from roseplay.extras.lab.words import kept_text, plain_value, runs_text, sentences, verdict_words
from roseplay.formats.numbers import (
    amount_text,
    common_unit,
    megabytes_text,
    number_text,
    range_text,
    ratio_text,
    setting_text,
)
from roseplay.formats.report_page import drawn, heading, report_page, table
from roseplay.formats.segments import as_html
from roseplay.settings import Setting, settings_of
from roseplay.traffic.run_figures import FIGURES

_TITLES = {"compare": ("A and B", "Result"), "sweep": ("sweep", "Values"), "find": ("search", "Tries")}
# What the limits are for.
_OF_A_REQUEST, _OF_A_VALUE = "a request's TTFT and the p99 of its ITL", "a value's TTFT p95 and ITL p99"
_LIMITED = {
    "compare": _OF_A_REQUEST,
    "sweep": f"{_OF_A_VALUE}, and in goodput for {_OF_A_REQUEST}",
    "find": _OF_A_VALUE,
}
_PAIRS = {
    "seconds": "seconds at each value",
    "num_requests": "requests",
    "max_new_tokens": "answer, tokens",
    "rate_per_s": "rate, requests/s",
    "concurrency": "clients",
}
_VALUE = {
    RATE: "rate, requests/s",
    PROMPT: "prompt tokens",
    **{name: settings_of(Knobs)[name].label.lower() for name in KNOBS},
}

STATIC = Path(__file__).with_name("static")
_GIVEN = {"settings": catalogue(), "tabs": {"lab": {"terms": {}}}}  # for the scripts


def html_report(document: Result) -> str:
    """Returns the report of a checked document with a summary, as one HTML file."""
    compares = document["kind"] == "compare"
    what, rows_title = _TITLES[document["kind"]]
    seconds = {"seconds": document["seconds"]} if document["kind"] == "sweep" and "seconds" in document else {}
    parts = [
        f"<h1>{escape(document['title'])}</h1>",
        f'<p class="quiet">{escape(_about(document))}</p>',
        "<ol>"
        + "".join(f"<li>{as_html(finding['words'])}</li>" for finding in document["summary"]["findings"])
        + "</ol>",
        drawn('<div class="views"></div>', "lab/report.js", document, _GIVEN, STATIC),
        *(heading(rows_title), _html_table(result_table(document))),
        *(heading("Settings", "" if compares else "of every value"), _settings(document)),
        heading("Traffic and environment"),
        _pairs({"scenario": document["scenario"], "seed": str(document["seed"]), **seconds, **document["params"]}),
        _pairs({"created": document["created"], **document["environment"]}),
    ]
    return report_page(f"{document['title']}: {what}", parts)


def _about(document: Result) -> str:
    runs, order = _runs_text(document), ""
    if document["kind"] == "compare":
        order = f", in the order {' '.join(document['order'])}"
    medians = "" if is_once(document) else "; medians, beside them the lowest and highest"
    name = f"{document['name']}. " if document["name"] else ""
    ttft, itl = (amount_text(document["limits"][limit], "ms") for limit in ("ttft_ms", "itl_ms"))
    limits = f"Limits: TTFT {ttft}, ITL {itl}; they are for {_LIMITED[document['kind']]}"
    return f"{name}{_measured_on(document)}: {runs}{order}{medians}. {limits}."


def _measured_on(document: Result) -> str:
    return f"{document['model']} on {document['device']}, {document['dtype']}"


def _runs_text(document: Result) -> str:
    """Returns how often each arm or value was measured, as in ``3 runs a value and arm``."""
    if is_once(document):
        return f"each {'arm' if document['kind'] == 'compare' else 'value'} simulated once"
    if document["kind"] == "compare":
        return f"{runs_text([document['repeats']])} an arm"
    runs = runs_text(len(point["runs"]) for points in arm_points(document).values() for point in points)
    return f"{runs} a value" + (" and arm" if len(document["arms"]) > 1 else "")


class Cell(NamedTuple):
    """A cell of a table: its text, and a quieter one beside it; ``mark`` is the first one's class in HTML."""

    text: str
    beside: str = ""
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.beside}".strip()

    @property
    def html(self) -> str:
        text = f'<span class="{self.mark}">{escape(self.text)}</span>' if self.mark else escape(self.text)
        return f'{text} <span class="quiet">{escape(self.beside)}</span>' if self.beside else text


_ARMS = (Cell("A"), Cell("B", mark="b"))


def result_table(document: Result) -> list[list[Cell]]:
    """Returns the table of a comparison's figures, or of values or tries; the first row is its head."""
    return _metrics(document) if document["kind"] == "compare" else _values(document)


def _metrics(document: ComparisonResult) -> list[list[Cell]]:
    rows = [[Cell("figure"), *_ARMS, Cell("B / A"), Cell("B is")]]
    for row in document["summary"]["metrics"]:
        unit, values = common_unit(row["unit"], row["a"], *row["a_range"], row["b"], *row["b_range"])
        a, b = _spreads(values)
        if row["verdict"] in ("better", "worse"):
            a, b = (a._replace(mark="better"), b) if row["verdict"] == "worse" else (a, b._replace(mark="better"))
        ends = (Cell(ratio_text(row["ratio"])), Cell(verdict_words(Row(**row))))
        rows.append([Cell(_titled(row["title"], unit)), a, b, *ends])
    return rows


def _values(document: SweepResult | FindResult) -> list[list[Cell]]:
    rows = point_rows(document)
    head, columns = [Cell(_VALUE[document["setting"]])], []
    for name in rows[0]["figures"]:
        spreads = [row["figures"][name] for row in rows]
        unit, values = common_unit(
            FIGURES[name].unit, *(end for spread in spreads for end in (spread["median"], *spread["range"]))
        )
        head.append(Cell(_titled(FIGURES[name].title, unit)))
        columns.append(_spreads(values))
    cells = [[*head, Cell("limits")]]
    for number, (row, *figures) in enumerate(zip(rows, *columns, strict=True), 1):
        value = f"{number}. {plain_value(row['value'])}" if document["kind"] == "find" else plain_value(row["value"])
        cells.append([Cell(value), *figures, Cell(kept_text(row))])
    if "arm" in rows[0]:
        for line, arm in zip(cells, [Cell("arm"), *(_ARMS[ARMS.index(row["arm"])] for row in rows)], strict=True):
            line.insert(1, arm)
    return cells


def _spreads(values: Sequence[float | None]) -> list[Cell]:
    """Returns medians, each followed by its range in ``values``."""
    return [Cell(number_text(values[at]), range_text(*values[at + 1 : at + 3])) for at in range(0, len(values), 3)]


def _titled(title: str, unit: str) -> str:
    return f"{title}, {unit}" if unit else title


def _settings(document: Result) -> str:
    """Returns a table of settings with a column for each arm; those that differ come first."""
    arms = list(arms_of(document).values())
    differs = arms[0].get("differs", ())
    parts = {part: [arm.get(part, {}) for arm in arms] for part in PARTS}
    varied = None if document["kind"] == "compare" else document["setting"]
    names = [(part, name) for part, of in parts.items() for name in {**of[0], **of[-1]} if name != varied]
    names.sort(key=lambda item: item[1] not in differs)
    off = () if document["device"].startswith(("cuda", "simulated")) else GPU_KNOBS  # as the page shows them
    rows = []
    for part, name in names:
        it = SETTINGS.get(name)
        title = _titled(it.label, "MB" if it.unit == "bytes" else it.unit) if it else ""
        values = (Cell("off" if name in off else _value(it, of.get(name))) for of in parts[part])
        rows.append([Cell(title, name), *values])
    heads = [Cell("setting"), *_ARMS[: len(arms)]]
    return _html_table([heads, *rows], marked=sum(name in differs for _, name in names))


def _html_table(rows: Sequence[Sequence[Cell]], marked: int = 0) -> str:
    """Returns a table whose first row is its head as HTML."""
    head, *body = ([cell.html for cell in row] for row in rows)
    return table(body, head, marked=marked)


def _value(setting: Setting | None, value: Scalar) -> str:
    if setting is None or value is None:
        return setting_text(value, "unlimited" if setting and setting.values.none == "unlimited" else "–")
    if setting.unit == "bytes" and not isinstance(value, str):
        return megabytes_text(value)
    return setting_text(setting.label_of(value))


def _pairs(values: Mapping[str, Scalar]) -> str:
    """Returns a table of names and values."""
    return table(
        [
            (escape(_PAIRS.get(name, name.replace("_", " "))), escape(setting_text(it, "–")))
            for name, it in values.items()
        ]
    )


def text_report(document: Result) -> list[str]:
    """Returns a result as lines of text: title, sentences, and a line for each figure or value with its range."""
    title = f"{document['title']}: {_measured_on(document)}, {_runs_text(document)}"
    labels = [f"  {arm}: {side['label']}" for arm, side in arms_of(document).items() if "label" in side]
    rows = result_table(document)
    wide = [max(map(len, map(str, column))) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, wide, strict=True)).rstrip() for row in rows]
    return [title, *labels, "", *sentences(document["summary"]), "", *lines]
