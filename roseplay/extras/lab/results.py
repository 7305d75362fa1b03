"""Handles results of any kind: adds their summaries, reads them from files, repeats them, and writes tables."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from roseplay.extras.lab.document import ARMS, MAX_POINTS, PARTS, check_document
from roseplay.extras.lab.findings.comparison import comparison_findings
from roseplay.extras.lab.findings.search import Search, search_findings
from roseplay.extras.lab.findings.sweep import sweep_findings
from roseplay.extras.lab.order import find_scenario
from roseplay.extras.lab.pair import comparison_pair
from roseplay.extras.lab.points import arm_points, point_rows
from roseplay.extras.lab.words import entry
from roseplay.formats.json_text import strict_json
from roseplay.formats.segments import plain
from roseplay.formats.spreadsheet import spreadsheet
from roseplay.traffic.own_traffic import OWN
from roseplay.traffic.pair import title

MAX_BYTES = 32 * 2**20
_FINDINGS = {"compare": comparison_findings, "sweep": sweep_findings, "find": search_findings}


def summary_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ``summary`` of a result: its tables, its ``findings``, each with its fields and its ``words``,
    and of a comparison its ``pair``, a picture."""
    tables, findings = _FINDINGS[document["kind"]](document)
    summary = {**tables, "findings": list(map(entry, findings))}
    return summary | ({"pair": comparison_pair(document, summary, findings)} if document["kind"] == "compare" else {})


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document of runs completed with the differences between its arms, and the summary."""
    if len(document["arms"]) > 1:
        a, b = (document["arms"][arm] for arm in ARMS)
        pairs = [(a.get(part, {}), b.get(part, {})) for part in PARTS]
        differs = [name for x, y in pairs for name in {**x, **y} if x.get(name) != y.get(name)]
        for arm in (a, b):
            arm["differs"], arm["label"] = differs, _label(arm, differs)
    return {**document, "summary": summary_of(document)}


def _label(arm: Mapping[str, Any], differs: list[str]) -> str:
    """Returns a short label for an arm: the settings in which it differs from the other."""
    values = {name: value for part in PARTS for name, value in arm.get(part, {}).items()}
    return plain(title({name: values.get(name) for name in differs})) or "the same"


def parse_result(content: bytes) -> dict[str, Any]:
    """Parse and check a result from a file; its summary is computed again.

    Raises:
        ValueError: it is invalid; the message is one sentence on what is wrong.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES // 2**20} MiB, so it is not a result of the lab")
    document = checked(strict_json(content, "the file"))
    return {**document, "summary": summary_of(document)}


def checked(document: Any) -> dict[str, Any]:
    """Returns a result, checked; raises the ``ValueError`` of ``parse_result``."""
    document = dict(check_document(document))
    has_b = {"compare": True, "sweep": "b_points" in document, "find": False}[document["kind"]]
    if ("B" in document["arms"]) != has_b:
        raise ValueError(f"the result {'lacks' if has_b else 'cannot have'} arm B")
    if document["kind"] == "sweep":
        _check_values(document)
    elif document["kind"] == "find":
        _check_tries(document)
    else:
        for arm in ARMS:
            if not any(run["arm"] == arm for run in document["runs"]):
                raise ValueError(f"the result has no run of arm {arm}")
    return document


def _check_values(document: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` if the values are not the first of those asked for, in increasing order, in each arm."""
    asked = document["asked"]
    rising = all(low < high for low, high in pairwise((0, *asked)))
    measured = [[point["value"] for point in points] for points in arm_points(document).values()]
    if not rising or len(asked) > MAX_POINTS or any(values != asked[: len(values)] for values in measured):
        raise ValueError("the values in the result differ from those of its sweep")


def _check_tries(document: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` if the tries are not those that the search would make on this grid."""
    grid = document["grid"]
    values = grid[:-1] if grid[-1] is None and document["setting"] == "prefill_max_tokens" else grid
    if not values or None in values or any(low >= high for low, high in pairwise(values)):
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
    document = checked(document)
    arms, traffic = document["arms"], document.get("traffic")
    scenario = OWN if traffic and document["scenario"] == OWN.name else find_scenario(document["scenario"])
    a, b = (arms[arm]["config"] for arm in ARMS)
    own = {*scenario.config, *scenario.compared_config}
    names = [name for name in a if name in own or a[name] != b.get(name)]
    fields = ("scenario", "seed", "repeats", "params", "limits", "name", "max_spread_pct")
    body = {name: document[name] for name in fields if name in document}
    if traffic:
        body = {**body, "params": {}, "traffic": traffic}
    for arm in ARMS:
        config = {name: arms[arm]["config"][name] for name in names if name in arms[arm]["config"]}
        if config.get("kv_cache_memory") is not None:
            config.pop("num_blocks", None)  # was derived from it
        body[arm.lower()] = {"knobs": arms[arm]["knobs"], "config": config}
    return body


def points_csv(document: Mapping[str, Any]) -> bytes:
    """Returns the table of a sweep's values or a search's tries as CSV, with the median and range of each figure.

    A sweep of two arms has a row for each of them at each value, and a column for the arm.
    """
    rows = point_rows(document)
    names = list(rows[0]["figures"])
    own = [*(["arm"] if "arm" in rows[0] else []), "kept", "runs", *(["sure"] if document["kind"] == "find" else [])]

    def cells(row: Mapping[str, Any]) -> list[Any]:
        spreads = [row["figures"][name] for name in names]
        ends = (end for spread in spreads for end in (spread["median"], *spread["range"]))
        return [row["value"], *(row[name] for name in own), *ends]

    columns = [document["setting"], *own, *(f"{name}{end}" for name in names for end in ("", "_min", "_max"))]
    return spreadsheet(columns, map(cells, rows))
