"""Three sentences about a comparison: the effect, its price, and whether both arms did the same work.

What they say about a figure is the verdict of its row, which the table and its bars show as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from roseplay.formats.numbers import number_text, ratio_text
from roseplay.traffic.difference import spread_text
from roseplay.traffic.scenarios import SCENARIOS

Row = Mapping[str, Any]
Rows = Mapping[str, Row]

# Verdicts on B in tables.
VERDICTS: Mapping[str, str] = {"better": "better", "worse": "worse", "within": "within the spread", "unknown": "–"}
# These explain other figures; they are never the effect.
_EXPLAIN = ("computed_tokens", "saved_tokens", "kv_pool_tokens")
# These are mentioned only where a scenario is about them.
_IF_NAMED = ("longest_ttft_ms", "small_tenant_queue_p50_ms", "large_tenant_queue_p50_ms")
_ALWAYS_A_PRICE = ("ttft_p99_ms", "e2e_p99_ms")
_WORK = ("output_tokens_per_s", "goodput_req_s")


def sentences(rows: Rows, scenario: str, same_tokens: bool | None, *, simulated: bool = False) -> list[str]:
    """Returns the three sentences; for an unknown scenario, no particular figure is watched.

    Args:
        rows: of a summary, by name.
        same_tokens: whether all runs generated the same tokens; None for servers, whose models and prompts may differ.
        simulated: whether no model generated them.
    """
    known = SCENARIOS.get(scenario)
    watch, promised = (known.watch, known.price) if known and known.watch in rows else (None, None)
    effect = _effect(rows, watch)
    first = _first(rows, watch, effect)
    second, paid = _price(rows, effect, promised)
    return [first, second, _work(rows, {effect["name"] if effect else None, *paid}, same_tokens, simulated)]


def _effect(rows: Rows, watch: str | None) -> Row | None:
    """Returns the watched row if it is clear, otherwise B's largest gain, if there is one."""
    if watch is not None and is_clear(rows[watch]):
        return rows[watch]
    found = (row for row in rows.values() if row["name"] not in (*_EXPLAIN, *_IF_NAMED))
    gains = [row for row in found if row["verdict"] == "better" or (watch is None and is_clear(row))]
    return max(gains, key=_distance, default=None)


def _first(rows: Rows, watch: str | None, effect: Row | None) -> str:
    watched = rows[watch or "itl_p99_ms"]
    single = watched["repeats"] == 1 and not watched["exact"]
    once = " One run each: repeat it to see the spread." if single else ""
    if effect is None:
        return f"No clear effect: {_facts(watched, inside=True)}.{once}"
    if watch is not None and effect["name"] != watch:
        return f"{_facts(watched)}, but {_facts(effect, inside=True)}.{once}"
    return f"{_facts(effect)}.{once}"


def _price(rows: Rows, effect: Row | None, promised: str | None) -> tuple[str, set[str]]:
    """Returns the sentence and the names of the figures in it.

    The promised figure is mentioned whatever its verdict. If B is the worse arm, the sentence is about its gains.
    """
    opening, wanted = ("In return", "better") if effect and effect["verdict"] == "worse" else ("The price", "worse")
    said = {effect["name"]} if effect else set()
    parts = []
    if promised is not None and promised in rows and promised not in said:
        parts.append(_promise(rows[promised], wanted))
        said.add(promised)
    for name in _ALWAYS_A_PRICE:
        if name not in said and rows[name]["verdict"] != "unknown":
            parts.append(brief(rows[name]))
            said.add(name)
    arrival = rows["ttft_from_arrival_p95_ms"]
    if arrival["verdict"] not in ("unknown", rows["ttft_p95_ms"]["verdict"]) and arrival["name"] not in said:
        parts.append(_facts(arrival, inside=True))  # in one arm, requests waited before they were submitted
        said.add(arrival["name"])
    more = [row for row in rows.values() if row["verdict"] == wanted and row["name"] not in (*said, *_IF_NAMED)]
    if more:
        largest = max(more, key=_distance)
        parts.append(f"also {wanted} in B: {brief(largest)}")
        said.add(largest["name"])
    return f"{opening}: {'; '.join(parts) or 'no figure of it could be measured'}.", said


def _promise(row: Row, wanted: str) -> str:
    if is_clear(row) and row["verdict"] != wanted:
        return f"{in_sentence(row['title'])} was expected to be {wanted} in B but is {row['verdict']}: {_values(row)}"
    return _facts(row, inside=True)


def _work(rows: Rows, mentioned: Collection[str | None], same_tokens: bool | None, simulated: bool) -> str:
    if simulated:
        parts = ["The same work: the same requests, with equally long answers"]
    elif same_tokens is None:
        parts = ["The same requests, on other servers"]
    elif same_tokens:
        parts = ["The same work: every run gave the same tokens"]
    else:
        parts = ["Nearly the same work: some answers differ, since tokens that are nearly tied may fall either way"]
    for row in (rows[name] for name in _WORK if name not in mentioned):
        parts.append(_facts(row, inside=True) if is_clear(row) else brief(row))
    return "; ".join(parts) + "."


def verdict_words(row: Row) -> str:
    """Returns the verdict on B in words, for tables."""
    return "about the same" if row["exact"] and row["verdict"] == "within" else VERDICTS[row["verdict"]]


def is_clear(row: Row) -> bool:
    """Whether the row's verdict says that B is better or worse."""
    return row["verdict"] in ("better", "worse")


def _distance(row: Row) -> float:
    """Returns how far apart A and B are, as a logarithm."""
    return abs(math.log(row["ratio"])) if row["ratio"] else math.inf


def _facts(row: Row, *, inside: bool = False) -> str:
    """Returns a clause such as ``ITL p99 is 14.0 ms in B and 94.2 ms in A (0.15×)``."""
    title = in_sentence(row["title"]) if inside else row["title"]
    if row["verdict"] == "unknown":
        return f"{title} could not be measured"
    unclear = "too little to count" if row["exact"] else f"within {spread_text(row['repeats'])}"
    within = "" if is_clear(row) else f", {unclear}"
    return f"{title} {'is' if row['unit'] else 'are'} {_values(row)}{within}"


def _values(row: Row) -> str:
    unit = row["unit"].removesuffix(" in SLO")
    b, a = (f"{number_text(row[arm])} {unit}".strip() for arm in ("b", "a"))
    return f"{b} in B and {a} in A" + (f" ({ratio_text(row['ratio'])})" if row["ratio"] is not None else "")


def brief(row: Row) -> str:
    """Returns a clause such as ``TTFT p99 1.31×``, with a note if the difference is not clear."""
    title = in_sentence(row["title"])
    if row["verdict"] == "unknown":
        return f"{title} could not be measured"
    ratio = f" {ratio_text(row['ratio'])}" if row["ratio"] is not None else f" {_values(row)}"
    within = verdict_words(row) if row["repeats"] > 1 or row["exact"] else "too close for one run each"
    return f"{title}{ratio}" + ("" if is_clear(row) else f" ({within})")


def in_sentence(title: str) -> str:
    """Returns a title as written within a sentence; acronyms such as TTFT keep their case."""
    return title[0].lower() + title[1:] if title[1].islower() else title
