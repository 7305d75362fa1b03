"""The header's figures that the server computes: rates and counts. The page adds the latencies."""

from __future__ import annotations

from roseplay.recording.frame import Stats
from roseplay.recording.request_registry import PrefillTotals
from roseplay.recording.run import Run
from roseplay.traffic.waits import waits_grow

RATE_MS = 2000.0
FIRST_TOKENS_MS = 20_000.0  # the time by which it is judged whether the engine is saturated
_ARRIVED_MS = 5000.0  # requests that arrived within less are one burst


def header_figures(run: Run, unfinished: int, totals: PrefillTotals, *, remote: bool = False) -> Stats:
    """Returns the ``stats`` of a frame, as of ``run.t``: the rate of tokens over the last two seconds, counts after the
    newest step or in another server's last report, and ``totals`` as ``in_all``. What such a server reports is of all its
    clients.

    Args:
        unfinished: number of requests, since an idle engine makes no steps that could show it.
        remote: whether another server computes, which may not report steps.
    """
    step, prompt_tokens = run.steps[-1] if run.steps else None, totals.saved + totals.computed
    pool = (step.blocks_free, step.blocks_cached, step.blocks_active, step.blocks_shared) if step else None
    free, cached, active, shared = pool or (None, None, None, None)
    running, waiting = _running_and_waiting(run, unfinished, remote)
    served = run.served_per_s(RATE_MS) if remote else None
    return {
        "tok_s": run.tokens_per_s(RATE_MS) if served is None else served,
        "running": running,
        "waiting": waiting,
        "kv_total": sum(pool) if pool else None,
        "kv_free": free,
        "kv_cached": cached,
        "kv_active": active,
        "kv_shared": shared,
        "kv_used": run.load["kv_usage"] if run.load else None,
        "saved_tokens": totals.saved,
        "saved_pct": round(100 * totals.saved / prompt_tokens, 1) if prompt_tokens else None,
        "in_all": totals.figures(),
        "step": step.step_id if step else None,
        "saturated": bool(waiting) and _waits_grow(run),
    }


def _running_and_waiting(run: Run, unfinished: int, remote: bool) -> tuple[int, int | None]:
    """Returns the number of running and of waiting requests.

    Another server may have other clients, so the numbers that it reports take precedence. If it reports none, it is
    unknown how many of our requests wait.
    """
    if remote and run.steps and "steps" not in run.absent:
        return run.steps[-1].running, run.steps[-1].waiting
    if run.load and run.load["running"] is not None and run.load["waiting"] is not None:
        return run.load["running"], run.load["waiting"]
    if remote:
        return unfinished, None
    running = min(run.steps[-1].running if run.steps else 0, unfinished)
    return running, unfinished - running


def _waits_grow(run: Run) -> bool:
    """Whether, of the requests with a first token lately, later arrivals waited clearly longer for it."""
    arrived = sorted(
        (it.submitted, (it.first - it.submitted) / 1000)
        for it in run.requests.values()
        if it.submitted is not None and it.first is not None and it.first > run.t - FIRST_TOKENS_MS
    )
    if not arrived or arrived[-1][0] - arrived[0][0] < _ARRIVED_MS:
        return False
    return waits_grow([ttft_s for _, ttft_s in arrived])
