"""Handles results of any kind: adds their summaries, reads them from files, repeats them, and writes tables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, cast

from pydantic import ValidationError

from roseplay.extras.lab.document import MAX_POINTS, RESULT, VERSION, FindResult, Result, SweepResult
from roseplay.extras.lab.findings.comparison import comparison_findings
from roseplay.extras.lab.findings.search import Search, search_findings
from roseplay.extras.lab.findings.sweep import sweep_findings
from roseplay.extras.lab.order import find_scenario
from roseplay.extras.lab.pair import comparison_pair, differences
from roseplay.extras.lab.points import arm_points, point_rows
from roseplay.extras.lab.types import ARMS, PARTS, PointRow, Summary, Value
from roseplay.extras.lab.words import entry
from roseplay.formats.invalid import first_fault
from roseplay.formats.json_text import strict_json
from roseplay.formats.segments import plain
from roseplay.formats.spreadsheet import spreadsheet
from roseplay.traffic.own_traffic import OWN

MAX_BYTES = 32 * 2**20
_OWN: tuple[Literal["arm", "kept", "runs", "sure"], ...] = ("arm", "kept", "runs", "sure")  # columns of a point


def summary_of(document: Result) -> Summary:
    """Returns the ``summary`` of a result: its tables, its ``findings`` and, of a comparison, a picture."""
    if document["kind"] != "compare":
        summary, findings = sweep_findings(document) if document["kind"] == "sweep" else search_findings(document)
        return {**summary, "findings": list(map(entry, findings))}
    summary, findings = comparison_findings(document)
    summary["findings"] = list(map(entry, findings))
    return {**summary, "pair": comparison_pair(document, summary, findings)}


def completed(document: Result) -> Result:
    """Returns a document of runs completed with the differences between its arms, and the summary."""
    if "B" in document["arms"]:
        a, b = document["arms"]["A"], document["arms"]["B"]
        pairs = [(a.get(part, {}), b.get(part, {})) for part in PARTS]
        differs = [name for x, y in pairs for name in {**x, **y} if x.get(name) != y.get(name)]
        for arm in (a, b):
            arm["differs"] = differs
            arm["label"] = plain(differences(arm)) or "the same"
    document["summary"] = summary_of(document)
    return document


def parse_result(content: bytes) -> Result:
    """Parse and check a result from a file; its summary is computed again.

    Raises:
        ValueError: it is invalid; the message is one sentence on what is wrong.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES // 2**20} MiB, so it is not a result of the lab")
    document = checked(strict_json(content, "the file"))
    document["summary"] = summary_of(document)
    return document


def checked(document: Any) -> Result:
    """Returns a result, checked; raises the ``ValueError`` of ``parse_result``."""
    known = isinstance(document, dict) and document.get("roseplay_lab") == VERSION
    if not known or document.get("kind") not in ("compare", "sweep", "find"):
        raise ValueError("this is not a result of the lab: open one that the lab exported")
    try:
        RESULT.validate_python(document)
    except ValidationError as error:
        raise ValueError(first_fault(error, "the result", skip=1)) from None
    result = cast(Result, document)
    has_b = result["kind"] == "compare" or (result["kind"] == "sweep" and "b_points" in result)
    if ("B" in result["arms"]) != has_b:
        raise ValueError(f"the result {'lacks' if has_b else 'cannot have'} arm B")
    if result["kind"] == "sweep":
        _check_values(result)
    elif result["kind"] == "find":
        _check_tries(result)
    else:
        for arm in ARMS:
            if not any(run["arm"] == arm for run in result["runs"]):
                raise ValueError(f"the result has no run of arm {arm}")
    return result


def _check_values(document: SweepResult) -> None:
    """Raises ``ValueError`` if the values are not the first of those asked for, in increasing order, in each arm."""
    asked = document["asked"]
    rising = all(low < high for low, high in pairwise((0, *asked)))
    measured = [[point["value"] for point in points] for points in arm_points(document).values()]
    if not rising or len(asked) > MAX_POINTS or any(values != asked[: len(values)] for values in measured):
        raise ValueError("the values in the result differ from those of its sweep")


def _check_tries(document: FindResult) -> None:
    """Raises ``ValueError`` if the tries are not those that the search would make on this grid."""
    grid = document["grid"]
    values = grid[:-1] if grid[-1] is None and document["setting"] == "prefill_max_tokens" else grid
    known = [value for value in values if value is not None]
    if not values or len(known) < len(values) or any(low >= high for low, high in pairwise(known)):
        raise ValueError("the grid in the result is not that of a search: its values must increase")
    search = Search(grid, document["limits"])
    for point in document["points"]:
        if search.next is None or point["value"] != grid[search.next]:
            raise ValueError("the tries in the result differ from those of its search")
        search.record(point)


def experiment_of(document: Any) -> dict[str, Any]:
    """Returns the comparison that produced a result, as ``parse_experiment`` reads it, so that it can be repeated.

    It includes the engine settings in which the arms differ and those that the scenario sets. Other settings, which
    both arms had in common, are then those of the engine that repeats it.

    Raises:
        ValueError: the document is not the result of a comparison.
    """
    if isinstance(document, dict) and document.get("kind") in ("sweep", "find"):
        raise ValueError("only a comparison can be repeated from its result")
    result = checked(document)
    arms, traffic = result["arms"], result.get("traffic")
    scenario = OWN if traffic and result["scenario"] == OWN.name else find_scenario(result["scenario"])
    a, b = (arms[arm]["config"] for arm in ARMS)
    own = {*scenario.config, *scenario.compared_config}
    names = [name for name in a if name in own or a[name] != b.get(name)]
    fields = ("scenario", "seed", "repeats", "params", "limits", "name", "max_spread_pct")
    body: dict[str, Any] = {name: value for name, value in result.items() if name in fields}
    if traffic:
        body = {**body, "params": {}, "traffic": traffic}
    for arm in ARMS:
        config = {name: arms[arm]["config"][name] for name in names if name in arms[arm]["config"]}
        if config.get("kv_cache_memory") is not None:
            config.pop("num_blocks", None)  # was derived from it
        body[arm.lower()] = {"knobs": arms[arm]["knobs"], "config": config}
    return body


def points_csv(document: SweepResult | FindResult) -> bytes:
    """Returns the table of a sweep's values or a search's tries as CSV, with the median and range of each figure.

    A sweep of two arms has a row for each of them at each value, and a column for the arm.
    """
    rows = point_rows(document)
    names = list(rows[0]["figures"])
    own = [name for name in _OWN if name in rows[0]]

    def cells(row: PointRow) -> list[Value | str]:
        spreads = [row["figures"][name] for name in names]
        ends = (end for spread in spreads for end in (spread["median"], *spread["range"]))
        return [row["value"], *(row[name] for name in own), *ends]

    columns = [document["setting"], *own, *(f"{name}{end}" for name in names for end in ("", "_min", "_max"))]
    return spreadsheet(columns, map(cells, rows))
