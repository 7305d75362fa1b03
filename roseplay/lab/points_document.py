"""The result of a sweep or a search as a self-contained JSON document: parsed, checked, and as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from roseplay.formats.json_schema import (
    Schema,
    check,
    choice,
    list_of,
    number,
    object_of,
    optional,
    scalar,
    text,
    whole,
)
from roseplay.formats.spreadsheet import spreadsheet
from roseplay.lab import find, sweep
from roseplay.lab.find_summary import PROMISES, Search, find_summary, is_kept, wants_more
from roseplay.lab.points import FIGURES_OF_A_RUN, KNOBS, RATE
from roseplay.lab.schema import TRAFFIC
from roseplay.lab.spec import MAX_REPEATS
from roseplay.lab.sweep_summary import SHOWN, sweep_summary

_TEXT = text(2000)
_PLAIN = object_of({}, rest=scalar(2000))
_POINT = object_of(
    {
        "value": number(0, null=True),
        "requests": whole(1),
        "runs": list_of(object_of(dict.fromkeys((*FIGURES_OF_A_RUN, "kept_pct"), number(0, null=True))), numbered=True),
    }
)
_COMMON: dict[str, Schema] = {
    **dict.fromkeys(("id", "created", "scenario", "title", "model", "device", "dtype"), _TEXT),
    "name": text(2000, null=True),
    "environment": _PLAIN,
    "seed": number(),
    "repeats": whole(1, MAX_REPEATS),
    "params": _PLAIN,
    "traffic": TRAFFIC,
    "settings": object_of({"knobs": _PLAIN, "config": _PLAIN}),
    "limits": object_of(dict.fromkeys(("ttft_ms", "itl_ms"), number(0))),
}
SWEEP = object_of(
    {
        **_COMMON,
        **optional(number(0.1, 100), "max_spread_pct"),
        **optional(number(0), "seconds"),
        "setting": choice(RATE, *KNOBS),
        "asked": list_of(number(0)),
        "points": list_of(_POINT, numbered=True),
    }
)
FIND = object_of(
    {
        **_COMMON,
        "setting": choice(*KNOBS),
        "promises": object_of(dict.fromkeys(PROMISES, number(0.01))),
        "grid": list_of(whole(1)),
        "baseline": _POINT,
        "tries": list_of(_POINT, numbered=True),
    }
)


def is_of_points(document: Any) -> bool:
    """Whether this says that it is the result of a sweep or a search, whatever else it holds."""
    return isinstance(document, Mapping) and ("roseplay_sweep" in document or "roseplay_find" in document)


def checked_points(document: Any) -> dict[str, Any]:
    """Returns the result of a sweep or a search with its summary; raises ``ValueError`` as in a file."""
    if not isinstance(document, dict):
        raise ValueError("this is no result of the lab: open one that the lab exported")
    if document.get("roseplay_sweep") == sweep.VERSION:
        check(document, SWEEP, "the result")
        _need(document["points"])
        _check_values(document)
        return {**document, "summary": sweep_summary(document)}
    if document.get("roseplay_find") == find.VERSION:
        check(document, FIND, "the result")
        _need(document["tries"])
        _need([document["baseline"]])
        _check_tries(document)
        return {**document, "summary": find_summary(document)}
    raise ValueError("this is no sweep and no search of the lab: open one that the lab exported")


def rows_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the summary's rows: a sweep's values, or a search's tries."""
    rows: list[dict[str, Any]] = document["summary"]["points" if "roseplay_sweep" in document else "tries"]
    return rows


def points_csv(document: Mapping[str, Any]) -> bytes:
    """Returns the table of a sweep's values or a search's tries as CSV: for each figure its median and its range."""
    rows = rows_of(document)
    names = SHOWN if "roseplay_sweep" in document else list(rows[0]["figures"])
    own = ["kept", "runs", *(["sure"] if "roseplay_find" in document else [])]

    def cells(row: Mapping[str, Any]) -> list[Any]:
        found = [row["figures"][name] for name in names]
        ends = (end for one in found for end in (one["median"], *one["range"]))
        return [row["value"], *(row[name] for name in own), *ends]

    columns = [document["setting"], *own, *(f"{name}{end}" for name in names for end in ("", "_min", "_max"))]
    return spreadsheet(columns, map(cells, rows))


def _need(points: list[dict[str, Any]]) -> None:
    if not points or not all(point["runs"] for point in points):
        raise ValueError("the result has a value without runs")


def _check_values(document: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` if the values are not those that were asked for, in rising order."""
    asked, values = document["asked"], [point["value"] for point in document["points"]]
    rising = all(low < high for low, high in pairwise((0, *asked)))
    if not rising or len(asked) > sweep.MAX_POINTS or values != asked[: len(values)]:
        raise ValueError("the result has other values than its sweep measures")


def _check_tries(document: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` if the tries are not those that the search makes on this grid."""
    search = Search(document["grid"], document["setting"])
    for point in document["tries"]:
        if point["value"] is None or point["value"] != search.next:
            raise ValueError("the result has other tries than its search makes")
        kept, more = (answer(point, document["promises"]) for answer in (is_kept, wants_more))
        search.record(kept, more=more)
