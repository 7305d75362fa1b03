"""Three sentences about a comparison: the effect, its price, and whether both arms did the same work.

None of them claims a difference that is within the spread of the repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from roseplay.texts import number_text
from roseplay.traffic.scenarios import SCENARIOS

Row = Mapping[str, Any]

# The least ratio of the medians besides; with one run each the spread is unknown.
LEAST_RATIO = 1.05
LEAST_RATIO_OF_ONE_RUN = 1.15
# These explain other figures; they are never the effect.
_EXPLAIN = ("computed_tokens", "saved_tokens", "kv_pool_tokens")


def sentences(rows: Mapping[str, Row], scenario: str, repeats: int, same_tokens: bool) -> list[str]:
    """Returns the three sentences; an unknown scenario has no figure of its own to watch."""
    known = SCENARIOS.get(scenario)
    watch, price = (known.watch, known.price) if known else (None, None)
    clear = [row for row in rows.values() if is_clear(row, repeats)]
    effect = _strongest((row for row in clear if row["name"] not in _EXPLAIN), prefer=watch)
    once = "" if repeats > 1 else " One run each: repeat it to see the spread."
    if effect is None:
        row = rows[watch or "itl_p99_ms"]
        first = f"No effect beyond {_spread(repeats)}: {_facts(row, inside=True)}.{once}"
        return [first, "The price: none that these figures show.", _work(rows, [], repeats, same_tokens)]
    first = f"{_facts(effect)}.{once}"
    if watch is not None and effect["name"] != watch:
        still = f"{rows[watch]['title']} shows no effect beyond {_spread(repeats)}"
        first = f"{still}, but {_facts(effect, inside=True)}.{once}"
    better_in_b = _better_in_b(effect)
    paid = _strongest((row for row in clear if _better_in_b(row) != better_in_b), prefer=price)
    opening = "The price" if better_in_b else "In return"
    second = f"{opening}: {_facts(paid, inside=True)}." if paid else f"{opening}: nothing that these figures show."
    return [first, second, _work(rows, [row["name"] for row in (effect, paid) if row], repeats, same_tokens)]


def is_clear(row: Row, repeats: int) -> bool:
    """Whether A and B differ by more than the spread of their repeats."""
    if row["a"] is None or row["b"] is None:
        return False
    apart = row["a_range"][1] < row["b_range"][0] or row["b_range"][1] < row["a_range"][0]
    return apart and _distance(row) > math.log(LEAST_RATIO if repeats > 1 else LEAST_RATIO_OF_ONE_RUN)


def _distance(row: Row) -> float:
    """Returns the ratio of the two as a logarithm; infinite if one of them is zero."""
    low, high = sorted((abs(row["a"]), abs(row["b"])))
    return 0.0 if high == 0 else math.inf if low == 0 else math.log(high / low)


def _better_in_b(row: Row) -> bool:
    return bool((row["b"] < row["a"]) == (row["better"] == "lower"))


def _strongest(rows: Iterable[Row], *, prefer: str | None) -> Row | None:
    return max(rows, key=lambda row: (row["name"] == prefer, _distance(row)), default=None)


def _work(rows: Mapping[str, Row], mentioned: list[str], repeats: int, same_tokens: bool) -> str:
    if same_tokens:
        parts = ["The same work: every run gave the same tokens"]
    else:
        parts = ["Nearly the same work: some answers differ, since tokens that are nearly tied may fall either way"]
    for name in ("output_tokens_per_s", "goodput_req_s"):
        if name in mentioned:
            continue
        row = rows[name]
        if is_clear(row, repeats):
            parts.append(_facts(row, inside=True))
        else:
            parts.append(f"{_inside(row['title'])} shows no difference beyond {_spread(repeats)}")
    return "; ".join(parts) + "."


def _spread(repeats: int) -> str:
    return "the spread of the repeats" if repeats > 1 else "what one run each can tell"


def _facts(row: Row, *, inside: bool = False) -> str:
    """Returns a clause such as ``ITL p99 is 14.0 ms in B and 94.2 ms in A (×0.15)``."""
    if row["a"] is None or row["b"] is None:
        return f"{row['title']} could not be measured"
    unit = row["unit"].removesuffix(" in SLO")
    figures = [f"{number_text(row[arm])} {unit}".strip() for arm in ("b", "a")]
    ratio = f" (×{row['ratio']:.2g})" if row["ratio"] and 1e-3 < row["ratio"] < 1e3 else ""
    title = _inside(row["title"]) if inside else row["title"]
    return f"{title} {'is' if unit else 'are'} {figures[0]} in B and {figures[1]} in A{ratio}"


def _inside(title: str) -> str:
    """Returns a title as written within a sentence; acronyms such as TTFT keep their case."""
    return title[0].lower() + title[1:] if title[1].islower() else title
