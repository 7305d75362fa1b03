"""Statistics of a run for its report; ``roseplay.traffic.metrics`` has the definitions."""

from __future__ import annotations

from typing import NamedTuple

from roseplay.formats.numbers import slowed_text
from roseplay.recording.recorded_run import RecordedRun
from roseplay.traffic.metrics import percentile


class Statistic(NamedTuple):
    """One row of the report's table; ``value`` is ``None`` if there was nothing to count."""

    name: str
    value: float | None
    unit: str
    meaning: str


def run_statistics(run: RecordedRun) -> list[Statistic]:
    """Returns the rows of the report's table."""
    requests = list(run.requests.values())
    ttft = [r.ttft for r in requests if r.ttft is not None]
    itl = [gap for _, _, gap in run.gaps()]
    ended = [r for r in requests if r.ended_well and r.first is not None and not r.skipped]
    tpot = [(r.token_runs[-1].t - r.token_runs[0].t) / (len(r.token_runs) - 1) for r in ended if len(r.token_runs) > 1]
    e2e = [r.finished - r.submitted for r in ended if r.finished is not None and r.submitted is not None]
    queue = [r.begun - r.submitted for r in requests if r.begun is not None and r.submitted is not None]
    steps, computed, saved, preemptions = _counts(run)
    tokens, seconds = sum(len(r.token_runs) for r in requests), (run.end - run.start) / 1000
    rows: list[Statistic] = [
        Statistic("length", seconds, "s", "from the first event to the last"),
        Statistic("requests", len(requests), "", f"{len(ended)} ended by themselves"),
        Statistic("aborted", sum(r.reason == "abort" for r in requests), "", "counted separately, like failed ones"),
        Statistic("failed", sum(r.reason == "error" for r in requests), "", "ended by an error"),
        Statistic("steps", steps, "", "of the engine"),
        Statistic("tokens", tokens, "", "generated, of all requests"),
        Statistic("tokens per second", tokens / seconds if seconds else None, "tok/s", "over the whole length"),
        Statistic("prompt tokens computed", computed, "", "in all steps, or of all answered requests"),
        Statistic("prompt tokens saved", saved, "", "found in the cache, or computed by another request in the step"),
        Statistic(
            "preemptions", preemptions, "", "because KV blocks ran out; another server counts those of all its clients"
        ),
    ]
    unit = f"ms{slowed_text(run.factors(run.start, run.end))}"
    pooled: tuple[tuple[str, list[float], str], ...] = (
        ("TTFT", ttft, "first token − submit; a preemption does not reset it"),
        ("ITL", itl, "every pause between two tokens of a request, pooled"),
        ("TPOT", tpot, "(last − first token) / (n − 1), of requests with two or more"),
        ("E2E", e2e, "finish − submit, of requests that ended by themselves"),
        ("queue", queue, "first scheduled − submit"),
    )
    for name, values, meaning in pooled:
        ordered = sorted(values)
        rows += [
            Statistic(f"{name} p{percent}", percentile(ordered, percent), unit, meaning if percent == 50 else "")
            for percent in (50, 95, 99)
        ]
    return rows


def _counts(run: RecordedRun) -> tuple[int | None, int | None, int | None, int | None]:
    """Returns the number of steps, prompt tokens computed and saved, and preemptions; ``None`` for what another server
    does not report."""
    if "steps" not in run.absent:
        computed = sum(step.prompt_tokens for step in run.steps)
        return len(run.steps), computed, sum(_saved(run).values()), sum(len(step.preempted) for step in run.steps)
    answered = [request for request in run.requests.values() if request.ended_well]
    prompts, cached = sum(request.prompt_tokens for request in answered), sum(request.cached for request in answered)
    told = "cached_tokens" not in run.absent
    return None, prompts - cached if told else None, cached if told else None, run.increase("preemptions")


def _saved(run: RecordedRun) -> dict[int, int]:
    """Returns the prompt tokens saved for each request, counted once however often it was preempted."""
    most: dict[int, int] = {}
    for step in run.steps:
        for entry in step.entries:
            most[entry.request_id] = max(most.get(entry.request_id, 0), entry.cached + entry.shared)
    return most
