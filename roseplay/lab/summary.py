"""The summary of a comparison: a row for each figure, and three sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roseplay.lab.sentences import sentences
from roseplay.lab.simulated_text import is_exact, is_simulated, simulated_sentences
from roseplay.lab.spec import ARMS
from roseplay.lab.spread import is_small, spread_pct, still_text
from roseplay.traffic.difference import difference
from roseplay.traffic.metrics import percentile
from roseplay.traffic.run_figures import FIGURES
from roseplay.traffic.scenarios import SCENARIOS

Run = Mapping[str, Any]
Limits = Mapping[str, float]


def summary(document: Mapping[str, Any], limits: Limits | None = None) -> dict[str, Any]:
    """Returns the ``summary`` of a comparison's result, for its own limits or others.

    Values are medians over the repeats; ranges are their lowest and highest. ``ratio`` is b / a, ``None`` if a is 0;
    ``verdict`` comes from ``traffic.difference``, the only rule for what counts as a difference. ``spread`` is present
    if a largest spread was requested.
    """
    limits = document["limits"] if limits is None else limits
    runs = {arm: [run for run in document["runs"] if run["arm"] == arm] for arm in ARMS}
    exact = is_exact(document["runs"])
    names = [*MEASURES]
    if any("tenant" in request for run in document["runs"] for request in run["requests"]):
        names += OF_TENANTS
    rows = [figure_row(name, watched_values(document["runs"], name, limits), exact=exact) for name in names]
    known = SCENARIOS.get(document["scenario"])
    about = () if known is None else (known.watch, known.price)
    rows = [row for row in rows if row["name"] in about or row["name"] not in _OF_PREEMPTIONS or row["a"] or row["b"]]
    configs = {arm: document["arms"][arm]["config"] for arm in ARMS}
    pools = {arm: _pool_tokens(config) for arm, config in configs.items()}
    same_gpus = all(configs["A"].get(name) == configs["B"].get(name) for name in ("run_as", "tensor_parallel_size"))
    if same_gpus and pools["A"] != pools["B"] and None not in pools.values():
        rows.append(figure_row("kv_pool_tokens", {arm: [pools[arm]] * len(runs[arm]) for arm in ARMS}))
    same_tokens = len({run["tokens_sha256"] for run in document["runs"]}) == 1
    ours = all("url" not in document["arms"][arm]["config"] for arm in ARMS)
    said = sentences(
        {row["name"]: row for row in rows},
        document["scenario"],
        same_tokens if ours else None,
        simulated=is_simulated(document),
    )
    saturated = [f"in {arm}" for arm in ARMS if any(run.get("saturated") for run in runs[arm])]
    found: dict[str, Any] = {"metrics": rows, "same_tokens": same_tokens, "sentences": said}
    most = document.get("max_spread_pct")
    if most is not None:
        name = known.watch if known else "itl_p99_ms"
        values = watched_values(document["runs"], name, limits)
        pct = {arm: spread_pct(values[arm]) for arm in ARMS}
        reached = all(is_small(values[arm], most) for arm in ARMS)
        found["spread"] = {"figure": name, "a_pct": pct["A"], "b_pct": pct["B"], "reached": reached}
        if not reached:
            said.append(still_text(name, max(share or 0 for share in pct.values()), len(runs["A"])))
    said += simulated_sentences(document, saturated)
    return found


def watched_values(runs: Sequence[Run], name: str, limits: Limits) -> dict[str, list[float | None]]:
    """Returns a figure in the runs of each arm."""
    return {arm: [{**MEASURES, **OF_TENANTS}[name](run, limits) for run in runs if run["arm"] == arm] for arm in ARMS}


def keeps(request: Mapping[str, Any], limits: Limits) -> bool:
    """Whether a request met the limits: its TTFT, and the p99 of its ITLs if it has any."""
    return (
        request["ttft_ms"] is not None
        and request["ttft_ms"] <= limits["ttft_ms"]
        and (request["itl_p99_ms"] is None or request["itl_p99_ms"] <= limits["itl_ms"])
    )


def figure_row(name: str, values: Mapping[str, Sequence[float | None]], *, exact: bool = False) -> dict[str, Any]:
    """Returns the row of a figure from its values in the repeats of each arm; for ``exact`` see ``difference``."""
    figure = FIGURES[name]
    found = difference(values["A"], values["B"], better=figure.better, exact=exact)
    return {
        "name": name,
        "title": figure.title,
        "unit": figure.unit,
        "better": figure.better,
        "a": _rounded(found.a),
        "b": _rounded(found.b),
        "a_range": [_rounded(value) for value in found.a_range or (None, None)],
        "b_range": [_rounded(value) for value in found.b_range or (None, None)],
        "ratio": _rounded(found.ratio),
        "verdict": found.verdict,
        "repeats": found.repeats,
        "exact": exact and found.repeats == 1,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _per_second(count: float, run: Run) -> float:
    return count / run["seconds"] if run["seconds"] else 0.0


def _of_requests(key: str, percent: float) -> Callable[[Run, Limits], float | None]:
    """Returns a measure of a percentile over requests."""
    return lambda run, _: percentile(sorted(v for r in run["requests"] if (v := r[key]) is not None), percent)


def _of_gaps(percent: float) -> Callable[[Run, Limits], float | None]:
    return lambda run, _: percentile(sorted(run["itl_ms"]), percent)


def _ttft_of_longest(run: Run) -> float | None:
    """Returns the median TTFT of the requests with the longest prompts, within a tenth of the longest."""
    lengths = [request["prompt_tokens"] for request in run["requests"]]
    least = 0.9 * max(lengths, default=0)
    ttfts = [r["ttft_ms"] for r, length in zip(run["requests"], lengths, strict=True) if length >= least]
    return percentile(sorted(ttft for ttft in ttfts if ttft is not None), 50)


def _queue_of_tenant(run: Run, index: int) -> float | None:
    """Returns the median queueing time of the tenant at this place, by tokens and then by name; ``None`` if there are not
    several."""
    tokens: dict[str, int] = {}
    for request in run["requests"]:
        name = request.get("tenant", "")
        tokens[name] = tokens.get(name, 0) + request["prompt_tokens"] + request["completion_tokens"]
    if len(tokens) < 2:
        return None
    chosen = sorted(tokens, key=lambda name: (tokens[name], name))[index]
    own = [r["queue_ms"] for r in run["requests"] if r.get("tenant", "") == chosen and r["queue_ms"] is not None]
    return percentile(sorted(own), 50)


def _computed(run: Run) -> int | None:
    """Returns the number of computed prompt tokens; for a server that reports no steps, of those not cached."""
    if run["steps"]:
        return sum(step[2] for step in run["steps"])
    if run["saved_tokens"] is None:
        return None
    return sum(request["prompt_tokens"] for request in run["requests"]) - run["saved_tokens"]


MEASURES: Mapping[str, Callable[[Run, Limits], float | None]] = {
    "output_tokens_per_s": lambda run, _: _per_second(sum(r["completion_tokens"] for r in run["requests"]), run),
    "goodput_req_s": lambda run, limits: _per_second(sum(keeps(r, limits) for r in run["requests"]), run),
    "ttft_p50_ms": _of_requests("ttft_ms", 50),
    "ttft_p95_ms": _of_requests("ttft_ms", 95),
    "ttft_p99_ms": _of_requests("ttft_ms", 99),
    "longest_ttft_ms": lambda run, _: _ttft_of_longest(run),
    "ttft_from_arrival_p50_ms": _of_requests("ttft_from_arrival_ms", 50),
    "ttft_from_arrival_p95_ms": _of_requests("ttft_from_arrival_ms", 95),
    "queue_p50_ms": _of_requests("queue_ms", 50),
    "tpot_p50_ms": _of_requests("tpot_ms", 50),
    "itl_p50_ms": _of_gaps(50),
    "itl_p95_ms": _of_gaps(95),
    "itl_p99_ms": _of_gaps(99),
    "itl_max_ms": _of_gaps(100),
    "e2e_p95_ms": _of_requests("e2e_ms", 95),
    "e2e_p99_ms": _of_requests("e2e_ms", 99),
    "submit_p50_ms": _of_requests("submit_ms", 50),
    "computed_tokens": lambda run, _: _computed(run),
    "saved_tokens": lambda run, _: run["saved_tokens"],
    "preemptions": lambda run, _: run["preemptions"],
    "recomputed_tokens": lambda run, _: run["recomputed_tokens"],
    "moved_mb": lambda run, _: run["moved_mb"],
}
_OF_PREEMPTIONS = ("recomputed_tokens", "moved_mb")  # without a row where they are 0, unless the scenario is about them


# For runs with requests of tenants.
OF_TENANTS: Mapping[str, Callable[[Run, Limits], float | None]] = {
    "small_tenant_queue_p50_ms": lambda run, _: _queue_of_tenant(run, 0),
    "large_tenant_queue_p50_ms": lambda run, _: _queue_of_tenant(run, -1),
}


def _pool_tokens(config: Mapping[str, Any]) -> int | None:
    """Returns how many tokens an arm's KV cache holds; ``None`` if a server does not report it."""
    blocks, size = config.get("num_blocks"), config.get("block_size")
    return (blocks - 1) * size if isinstance(blocks, int) and isinstance(size, int) else None
