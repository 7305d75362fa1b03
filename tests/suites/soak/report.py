"""A soak in words: a line every minute, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from roseplay.traffic.metrics import percentile
from tests.suites.soak.browser import BrowserTab
from tests.suites.soak.journal import Journal
from tests.suites.soak.sampler import Reference, Sampler, pooled
from tests.suites.soak.watcher import Watcher

_SPAN_MIN = 10  # the first and the last ten minutes are compared, or sixths of a shorter run


def progress_line(
    elapsed: float, sampler: Sampler, watcher: Watcher, journal: Journal, browser: BrowserTab | None
) -> str:
    """The state after this many seconds."""
    newest = sampler.newest
    line = (
        f"{time.strftime('%H:%M:%S', time.gmtime(elapsed))}  requests {len(watcher.shown):,}  tokens {watcher.tokens:,}  "
        f"server {newest('server memory'):.0f} MB (recording {newest('recording mb'):.1f}), "
        f"{newest('server fds'):.0f} fds, {newest('server threads'):.0f} threads  "
        f"worker {newest('worker memory'):.0f} MB, {newest('worker fds'):.0f} fds, {newest('worker threads'):.0f} threads  "
        f"temporary files {newest('temporary files'):.0f}"
    )
    if browser and browser.heap_mb:
        line += f"  browser {browser.heap_mb[-1][1]:.1f} MB, {browser.nodes[-1][1]:.0f} nodes"
    return line + f"  complaints {journal.counts['complaints']}"


def figures_of_latency(seconds: float, watcher: Watcher, reference: Reference) -> dict[str, Any]:
    """p50 and p99 in ms for the run's first and last span, and for the reference computation beside them."""
    minutes = max(1, int(seconds // 60))
    span = max(1, min(_SPAN_MIN, minutes // 6))
    spans = {"first": range(span), "last": range(max(0, minutes - span), minutes)}
    sources: dict[str, Any] = {
        "itl": watcher.itl_ms, "itl_all_knobs": watcher.all_itl_ms, "reference": reference.times_ms
    }  # fmt: skip
    return {
        "span_minutes": span,
        **{
            name: {
                which: {
                    "p50": percentile(values, 50), "p99": percentile(values, 99), "count": len(values)
                }
                for which, inside in spans.items()
                for values in [pooled(by_minute, inside)]
            }
            for name, by_minute in sources.items()
        },
    }  # fmt: skip


def print_end(document: dict[str, Any], say: Callable[[str], None]) -> None:
    """Print the table, and what failed."""
    settings = document["settings"]
    say(
        f"=== soak: {document['seconds']:.0f} s{' (interrupted)' if document['interrupted'] else ''}, seed {settings['seed']}, "
        f"rate {settings['rate']:g}, {document['steps']:,} steps, {document['preempted']:,} preemptions; "
        f"trends from {settings['warm_up_s']:.0f} s on ==="
    )
    if document["seconds"] <= settings["warm_up_s"]:
        say("the run ended before its warm-up: there are no trends")
    for name, t in document["memory"].items():
        say(
            f"memory   {name:<16} {t['first']:8.1f} -> {t['last']:8.1f} MB (highest {t['highest']:.1f})   "
            f"slope {t['per_hour']:+8.2f} ± {t['error']:.2f} MB/hour   growth {t['growth']:.1f}, limit {t['limit']:.0f} MB"
        )
    for name, c in document["counts"].items():
        say(f"handles  {name:<16} at most {c['first_highest']:g} at first, at least {c['last_lowest']:g} at last")
    for name, figures in document["audit"].items():
        told = " / ".join(f"{value:,}" for value in figures) if isinstance(figures, list) else figures
        say(f"count    {name}: {told}")
    for name in ("itl", "itl_all_knobs", "reference"):
        parts = document["latency"][name]
        told = "   ".join(
            f"{which} p50 {part['p50'] or 0:.2f} p99 {part['p99'] or 0:.2f} ms (n={part['count']:,})"
            for which, part in parts.items()
        )
        say(f"latency  {name:<14} {told}")
    say("acts     " + ", ".join(f"{name} {number}" for name, number in document["acts"].items()))
    say("http     " + ", ".join(f"{status}: {number:,}" for status, number in document["http_statuses"].items()))
    for failure in document["failures"]:
        say(f"FAILED   {failure}")
    say("flat, and all counts agree" if not document["failures"] else f"{len(document['failures'])} failures")
