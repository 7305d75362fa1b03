"""A soak in words: a line every minute, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.suites.soak.journal import Journal
from tests.suites.soak.sampler import Sampler
from tests.suites.soak.watcher import Watcher


def progress_line(elapsed: float, sampler: Sampler, watcher: Watcher, journal: Journal) -> str:
    """The state after this many seconds."""
    newest = sampler.newest
    parts = [f"requests {len(watcher.shown):,}", f"tokens {watcher.tokens:,}"]
    for role in ("server", "worker"):
        memory, fds, threads = (newest(f"{role} {what}") for what in ("memory", "fds", "threads"))
        parts.append(f"{role} {memory:.0f} MB, {fds:.0f} fds, {threads:.0f} threads")
    parts.append(f"recording {newest('recording mb'):.1f} MB")
    parts.append(f"complaints {journal.counts['complaints']}")
    return "  ".join([time.strftime("%H:%M:%S", time.gmtime(elapsed)), *parts])


def print_end(document: dict[str, Any], say: Callable[[str], None]) -> None:
    """Print the table, and what failed."""
    say(f"=== soak: {document['seconds']:.0f} s, {document['steps']:,} steps; {document['settings']} ===")
    if not document["memory"]:
        say("the run ended before its warm-up: there are no trends")
    for name, t in document["memory"].items():
        say(
            f"memory   {name:<16} {t['first']:8.1f} -> {t['last']:8.1f} MB (highest {t['highest']:.1f})   "
            f"slope {t['per_hour']:+8.2f} ± {t['error']:.2f} MB/hour   growth {t['growth']:.1f}, limit {t['limit']:.0f} MB"
        )
    for name, c in document["counts"].items():
        say(f"handles  {name:<16} at most {c['first_highest']:g} at first, at least {c['last_lowest']:g} at last")
    for name, figures in document["audit"].items():
        say(f"count    {name}: {figures}")
    say("acts     " + ", ".join(f"{name} {number}" for name, number in document["acts"].items()))
    for failure in document["failures"]:
        say(f"FAILED   {failure}")
    say("flat, and all counts agree" if not document["failures"] else f"{len(document['failures'])} failures")
