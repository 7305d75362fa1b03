"""The findings of a comparison: the effect, its price, and whether both arms did the same work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal

from roseplay.extras.lab.document import ComparisonResult, Run
from roseplay.extras.lab.findings.finding import Finding, Row, conditions, how_measured
from roseplay.extras.lab.measures import MEASURES, OF_TENANTS
from roseplay.extras.lab.points import is_exact, is_small, spread_pct
from roseplay.extras.lab.types import ARMS, ArmName, Limits, Plain, Summary
from roseplay.traffic.scenarios import SCENARIOS

# These explain other figures; they are never the effect.
_EXPLAIN = ("computed_tokens", "saved_tokens", "kv_pool_tokens", "mask_ms")
# These are mentioned only where a scenario is about them.
_IF_NAMED = ("longest_ttft_ms", "small_tenant_queue_p50_ms", "large_tenant_queue_p50_ms")
_ALWAYS_A_PRICE = ("ttft_p99_ms", "e2e_p99_ms")
_WORK = ("output_tokens_per_s", "goodput_req_s")
# Without a row where there is nothing of it, unless the scenario is about it.
_IF_ANY = ("recomputed_tokens", "moved_mb", "mask_ms", "mask_wait_ms")

Rows = Mapping[str, Row]


class Effect(Finding):
    row: Row | None  # the watched figure if it is clear, otherwise B's largest gain, if there is one
    watched: Row | None  # the watched figure, if ``row`` is another or ``None``
    once: bool  # whether a single measured run of each arm says nothing about the spread
    settings: Plain  # those of both arms under which it holds


class Price(Finding):
    """What the effect costs. If B is the worse arm, it is what B gains in return."""

    wanted: Literal["better", "worse"]  # the verdict on B of figures that belong to it
    named: Row | None  # the figure that the scenario names as the price, whatever its verdict
    always: list[Row]  # figures that are always mentioned
    from_arrival: Row | None  # TTFT from arrival, if requests waited in one arm before they were submitted
    largest: Row | None  # the largest of the others

    @property
    def rows(self) -> list[Row]:
        return [row for row in (self.named, *self.always, self.from_arrival, self.largest) if row is not None]


class Work(Finding):
    """Whether both arms did the same work."""

    same: Literal["tokens", "nearly", "requests", "servers"]  # requests if simulated; servers' models may differ
    rows: list[Row]  # figures of it that no other finding has


class WideSpread(Finding):
    """A spread that has not become as small as requested, in percent of the median."""

    figure: str
    pct: float
    repeats: int


def comparison_findings(document: ComparisonResult) -> tuple[Summary, list[Finding]]:
    limits, scenario = document["limits"], SCENARIOS.get(document["scenario"])
    about = () if scenario is None else (scenario.watch, scenario.price)
    rows = _rows(document, limits)
    rows = {name: row for name, row in rows.items() if name in about or name not in _IF_ANY or row.a or row.b}
    watch, priced = (scenario.watch, scenario.price) if scenario and scenario.watch in rows else (None, None)
    effect = _effect(rows, watch, conditions(*(document["arms"][arm] for arm in ARMS)))
    price = _price(rows, effect.row, priced)
    same_tokens = len({run["tokens_sha256"] for run in document["runs"]}) == 1
    named = [row.name for row in (effect.row, *price.rows) if row is not None]
    work = Work(_same_work(document, same_tokens), [rows[name] for name in _WORK if name not in named])
    findings: list[Finding] = [effect, price, work]
    summary: Summary = {"metrics": list(map(asdict, rows.values())), "same_tokens": same_tokens}
    if (most := document.get("max_spread_pct")) is not None:
        name = scenario.watch if scenario else "itl_p99_ms"
        values = watched_values(document["runs"], name, limits)
        pct = {arm: spread_pct(values[arm]) for arm in ARMS}
        reached = all(is_small(values[arm], most) for arm in ARMS)
        summary["spread"] = {"figure": name, "a_pct": pct["A"], "b_pct": pct["B"], "reached": reached}
        if not reached:
            findings.append(WideSpread(name, max(share or 0 for share in pct.values()), len(values["A"])))
    saturated = [arm for arm in ARMS if any(run.get("saturated") for run in document["runs"] if run["arm"] == arm)]
    return summary, [*findings, *how_measured(document, arms=saturated)]


def watched_values(runs: Sequence[Run], name: str, limits: Limits) -> dict[ArmName, list[float | None]]:
    return {arm: [{**MEASURES, **OF_TENANTS}[name](run, limits) for run in runs if run["arm"] == arm] for arm in ARMS}


def _rows(document: ComparisonResult, limits: Limits) -> Rows:
    runs = document["runs"]
    names = [*MEASURES]
    if any("tenant" in request for run in runs for request in run["requests"]):
        names += OF_TENANTS
    values = {name: watched_values(runs, name, limits) for name in names}
    rows = {name: Row.of(name, arms["A"], arms["B"], exact=is_exact(runs)) for name, arms in values.items()}
    configs = [document["arms"][arm]["config"] for arm in ARMS]
    a, b = map(_pool_tokens, configs)
    same_gpus = all(configs[0].get(name) == configs[1].get(name) for name in ("run_as", "tensor_parallel_size"))
    if same_gpus and a != b and None not in (a, b):
        rows["kv_pool_tokens"] = Row.of("kv_pool_tokens", *([pool] * (len(runs) // len(ARMS)) for pool in (a, b)))
    return rows


def _pool_tokens(config: Plain) -> int | None:
    """Returns how many tokens an arm's KV cache holds; ``None`` if a server does not report it."""
    blocks, size = config.get("num_blocks"), config.get("block_size")
    return (blocks - 1) * size if isinstance(blocks, int) and isinstance(size, int) else None


def _effect(rows: Rows, watch: str | None, settings: Plain) -> Effect:
    watched = rows[watch or "itl_p99_ms"]
    row = watched if watch is not None and watched.clear else _largest_gain(rows, any_verdict=watch is None)
    mentioned = row is None or (watch is not None and row is not watched)
    once = watched.repeats == 1 and not watched.exact
    return Effect(row, watched if mentioned else None, once, settings)


def _largest_gain(rows: Rows, *, any_verdict: bool) -> Row | None:
    """Returns the figure that is better in B by most, or with ``any_verdict`` also worse, if there is one."""
    named = (row for row in rows.values() if row.name not in (*_EXPLAIN, *_IF_NAMED))
    gains = [row for row in named if row.verdict == "better" or (any_verdict and row.clear)]
    return max(gains, key=lambda row: row.distance, default=None)


def _price(rows: Rows, effect: Row | None, priced: str | None) -> Price:
    wanted: Literal["better", "worse"] = "better" if effect and effect.verdict == "worse" else "worse"
    named = {effect.name} if effect else set()

    def take(row: Row | None) -> Row | None:
        """Returns the row, unless it is mentioned already."""
        if row is None or row.name in named:
            return None
        named.add(row.name)
        return row

    first = take(rows.get(priced or ""))
    always = [row for name in _ALWAYS_A_PRICE if rows[name].verdict != "unknown" and (row := take(rows[name]))]
    arrival = rows["ttft_from_arrival_p95_ms"]
    waited = arrival.verdict not in ("unknown", rows["ttft_p95_ms"].verdict)
    from_arrival = take(arrival) if waited else None
    others = [row for row in rows.values() if row.verdict == wanted and row.name not in (*named, *_IF_NAMED)]
    return Price(wanted, first, always, from_arrival, max(others, key=lambda row: row.distance, default=None))


def _same_work(document: ComparisonResult, same_tokens: bool) -> Literal["tokens", "nearly", "requests", "servers"]:
    if "simulated" in document["arms"]["A"]:
        return "requests"
    if len({document["arms"][arm]["config"].get("url") for arm in ARMS}) > 1:
        return "servers"
    return "tokens" if same_tokens else "nearly"
