"""A run as a table, one row per request, for a spreadsheet or a data frame."""

from __future__ import annotations

from roseplay.recording.reader import Recording
from roseplay.recording.run import Run
from roseplay.spreadsheet import cell, spreadsheet

COLUMNS = (
    "request", "kind", "lane", "burst", "title", "prompt_tokens", "cached_tokens", "shared_tokens", "cache_miss", "answer_tokens",
    "submitted_ms", "late_ms", "sent_ms", "queue_ms", "ttft_ms", "tpot_ms", "worst_gap_ms", "e2e_ms", "preemptions", "finish_reason",
)  # fmt: skip


def requests(recording: Recording) -> bytes:
    """Returns CSV in UTF-8, requests in order of arrival.

    ``submitted_ms`` counts from the run's first event. ``late_ms`` is how much later than its traffic wanted it was submitted;
    ``sent_ms`` when, after that, its last byte went to another server. ``worst_gap_ms`` is the longest time between two tokens of the answer,
    ``cache_miss`` why part of the prompt was not cached.
    Unknown values are empty, such as titles that were not recorded and the finish reason of a request that goes on.
    """
    run = Run(recording)
    rows = []
    for r in run.requests.values():
        submitted = None if r.submitted is None else round(r.submitted - run.start, 2)
        late = None if r.arrived is None or r.submitted is None else round(r.submitted - r.arrived, 2)
        e2e = None if r.finished is None or r.submitted is None else round(r.finished - r.submitted, 2)
        tpot = None if r.tpot_ms is None else round(r.tpot_ms, 3)
        about = (r.request_id, r.kind, r.lane, r.burst, cell(r.title))
        counts = (r.prompt_tokens, r.cached, r.shared, r.miss and r.miss["reason"], r.num_tokens)
        times = (submitted, late, r.sent_ms, r.queue_ms, r.ttft_ms, tpot, r.itl_max, e2e)
        rows.append((*about, *counts, *times, r.preemptions, r.reason))
    return spreadsheet(COLUMNS, rows)
