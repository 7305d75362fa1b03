"""Reports a result of any kind as a self-contained HTML file or as text: sentences, charts, table, settings, origin."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from roseplay.config import GPU_KNOBS
from roseplay.formats.numbers import number_text, range_text, ratio_text, setting_text
from roseplay.formats.report_page import charts, heading, report_page, table
from roseplay.formats.segments import as_html
from roseplay.lab.comparison_charts import comparison_charts
from roseplay.lab.document import ARMS
from roseplay.lab.findings.finding import Row, is_once
from roseplay.lab.findings.search import PROMISES
from roseplay.lab.point_charts import VALUE_AXIS, point_charts
from roseplay.lab.points import arm_points, point_rows
from roseplay.lab.words import kept_text, plain_value, runs_text, sentences, verdict_words
from roseplay.traffic.run_figures import FIGURES

_HEADS = ("A", '<span class="b">B</span>')
_METRIC_HEADS = ("figure", *_HEADS, "B / A", "B is")
_CELL = 22  # the least width of a column of text
_TITLES = {"compare": ("A and B", "Result"), "sweep": ("sweep", "Values"), "find": ("search", "Tries")}

Document = Mapping[str, Any]


def html_report(document: Document) -> str:
    """Returns the report of a checked document with a summary, as one HTML file."""
    compares = document["kind"] == "compare"
    what, rows_title = _TITLES[document["kind"]]
    drawn = comparison_charts(document) if compares else point_charts(document)
    made = charts(chart for _, _, chart in drawn)
    seconds = {"seconds": document["seconds"]} if "seconds" in document else {}
    parts = [
        f"<h1>{escape(document['title'])}</h1>",
        f'<p class="quiet">{escape(_about(document))}</p>',
        "<ol>"
        + "".join(f"<li>{as_html(finding['words'])}</li>" for finding in document["summary"]["findings"])
        + "</ol>",
        *(part for (title, sub, _), chart in zip(drawn, made, strict=True) for part in (heading(title, sub), chart)),
        *(heading(rows_title), table(metric_rows(document), _METRIC_HEADS) if compares else _point_table(document)),
        *(heading("Settings", "" if compares else "of every value"), _settings(document)),
        heading("Traffic and environment"),
        _pairs({"scenario": document["scenario"], "seed": document["seed"], **seconds, **document["params"]}),
        _pairs({"created": document["created"], **document["environment"]}),
    ]
    return report_page(f"{document['title']}: {what}", parts)


def _about(document: Document) -> str:
    limits, runs = document["limits"], _runs_text(document)
    promise = f"TTFT at most {limits['ttft_ms']:g} ms and "
    if document["kind"] == "find":
        promise = " and ".join(f"{FIGURES[each].title} at most {document['promises'][each]:g} ms" for each in PROMISES)
    elif document["kind"] == "compare":
        runs += f", in the order {' '.join(document['order'])}"
        promise += f"each request's own p99 ITL at most {limits['itl_ms']:g} ms"
    else:
        promise += (
            f"ITL at most {limits['itl_ms']:g} ms, TTFT p95 and ITL p99 for a value, each request's own for goodput"
        )
    medians = "" if is_once(document) else "; medians, beside them the lowest and highest"
    name = f"{document['name']}. " if document["name"] else ""
    return f"{name}{_measured_on(document)}: {runs}{medians}. Promise: {promise}."


def _measured_on(document: Document) -> str:
    return f"{document['model']} on {document['device']}, {document['dtype']}"


def _runs_text(document: Document) -> str:
    """Returns how often each arm or value was measured, as in ``3 runs a value and arm``."""
    compares = document["kind"] == "compare"
    if is_once(document):
        return f"each {'arm' if compares else 'value'} simulated once"
    if compares:
        return f"{runs_text([document['repeats']])} an arm"
    runs = runs_text(len(point["runs"]) for points in arm_points(document).values() for point in points)
    return f"{runs} a value" + (" and arm" if len(document["arms"]) > 1 else "")


def metric_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Returns the cells of the result's table, as HTML: figure, A, B, their ratio, and the verdict."""
    rows = []
    for row in document["summary"]["metrics"]:
        better = {"better": "b", "worse": "a"}.get(row["verdict"])
        cells = [escape(f"{row['title']} {row['unit']}".strip())]
        for side in ("a", "b"):
            mark = ' class="better"' if better == side else ""
            spread = range_text(*row[f"{side}_range"])
            cells.append(f'<span{mark}>{number_text(row[side])}</span> <span class="quiet">{spread}</span>')
        cells += [ratio_text(row["ratio"]), verdict_words(Row(**row))]
        rows.append(cells)
    return rows


def _point_table(document: Document) -> str:
    rows = point_rows(document)
    cells = [
        [
            (f"{number}. " if document["kind"] == "find" else "") + plain_value(row["value"]),
            *([_HEADS[ARMS.index(row["arm"])]] if "arm" in row else []),
            *(_cell(found) for found in row["figures"].values()),
            kept_text(row),
        ]
        for number, row in enumerate(rows, 1)
    ]
    heads = [", ".join(filter(None, (FIGURES[name].title, FIGURES[name].unit))) for name in rows[0]["figures"]]
    arm = ["arm"] if "arm" in rows[0] else []
    return table(cells, (VALUE_AXIS[document["setting"]], *arm, *map(escape, heads), "promise"))


def _cell(found: Mapping[str, Any]) -> str:
    return f'{number_text(found["median"])} <span class="quiet">{range_text(*found["range"])}</span>'


def _settings(document: Document) -> str:
    """Returns a table of settings with a column for each arm; those that differ come first."""
    arms = list(document["arms"].values())
    differs = arms[0].get("differs", ())
    names = [(part, name) for part in ("knobs", "config") for name in arms[0][part] if name != document.get("setting")]
    names.sort(key=lambda item: item[1] not in differs)
    none = {"knobs": "unlimited", "config": "–"}
    off = () if document["device"].startswith(("cuda", "simulated")) else GPU_KNOBS  # as the page shows them
    rows = [
        [
            escape(name),
            *("off" if name in off else escape(setting_text(arm[part].get(name), none[part])) for arm in arms),
        ]
        for part, name in names
    ]
    heads = ("setting", *_HEADS) if len(arms) > 1 else ()
    return table(rows, heads, marked=sum(name in differs for _, name in names))


def _pairs(values: Mapping[str, Any]) -> str:
    """Returns a table of names and values."""
    return table([(escape(name), escape(setting_text(value, "–"))) for name, value in values.items()])


def text_report(document: Document) -> list[str]:
    """Returns a result as lines of text: title, sentences, and a line for each figure or value with its range."""
    title = f"{document['title']}: {_measured_on(document)}, {_runs_text(document)}"
    labels = [f"  {arm}: {of['label']}" for arm, of in document["arms"].items() if "label" in of]
    lines = _metric_lines(document) if document["kind"] == "compare" else _point_lines(document)
    return [title, *labels, "", *sentences(document["summary"]), "", *lines]


def _metric_lines(document: Document) -> list[str]:
    lines = [f"{'':<26}{'A':>10}{'':14}{'B':>10}{'':14}{'B / A':>8}  B is"]
    for row in document["summary"]["metrics"]:
        name = ", ".join(filter(None, (row["title"], row["unit"])))
        a, b = (f"{number_text(row[arm]):>10} {range_text(*row[f'{arm}_range']):<13}" for arm in ("a", "b"))
        lines.append(f"{name:<26}{a}{b}{ratio_text(row['ratio']):>8}  {verdict_words(Row(**row))}")
    return lines


def _point_lines(document: Document) -> list[str]:
    rows = point_rows(document)
    wide = [max(_CELL, len(FIGURES[name].title) + 2) for name in rows[0]["figures"]]
    heads = "".join(f"{FIGURES[name].title:<{width}}" for name, width in zip(rows[0]["figures"], wide, strict=True))
    lines = [f"{document['setting']:<20}{heads}promise"]
    for row in rows:
        cells = (f"{number_text(found['median'])} {range_text(*found['range'])}" for found in row["figures"].values())
        value = f"{plain_value(row['value'])} {row.get('arm', '')}".strip()
        line = f"{value:<20}" + "".join(f"{cell.strip():<{width}}" for cell, width in zip(cells, wide, strict=True))
        lines.append(line + kept_text(row))
    return lines
