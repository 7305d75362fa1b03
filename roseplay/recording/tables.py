"""A run as tables with a row per step, token or request, and as traffic that can be played again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roseplay.engine.records import COLUMNS, StepRow
from roseplay.engine.ttft_causes import TTFTCauses
from roseplay.formats.spreadsheet import cell, spreadsheet
from roseplay.recording.reader import Recording
from roseplay.recording.run import Run
from roseplay.traffic.own import (
    MAX_ANSWER_TOKENS,
    MAX_ARRIVAL_S,
    MAX_PROMPT,
    MAX_REQUESTS,
    OwnRequest,
    from_first,
    to_jsonl,
)

TOKEN_COLUMNS = (
    "request", "kind", "lane", "burst", "token", "text", "time_ms", "itl_ms", "step", "step_prompt_tokens",
    "step_decode_tokens", "slow_motion", "device",
)  # fmt: skip
REQUEST_COLUMNS = (
    "request", "kind", "lane", "burst", "tenant", "priority", "title", "prompt_tokens", "cached_tokens", "shared_tokens", "cache_miss", "answer_tokens",
    "submitted_ms", "late_ms", "sent_ms", "queue_ms", "ttft_ms",
    "ttft_queue_ms", "ttft_blocks_ms", "ttft_budget_ms", "ttft_computing_ms", "tpot_ms", "worst_gap_ms", "e2e_ms", "preemptions", "slow_motion", "finish_reason",
    "device",
)  # fmt: skip


def tokens(recording: Recording) -> bytes:
    """Returns CSV in UTF-8, tokens in order of time.

    ``slow_motion`` is the factor by which the token's step was stretched; ``time_ms`` counts from the run's first
    event, ``token`` from 0 in each request. Unknown values are empty, such as the ITL of a first token and texts that
    were not recorded. ``device`` says whether times are simulated. An apostrophe precedes text that a spreadsheet would
    run as a formula.
    """
    run = Run(recording)
    rows = []
    for r in run.requests.values():
        for index, token in enumerate(r.token_runs, r.skipped):
            made_in = token.step
            step = (made_in.step_id, made_in.prompt_tokens, made_in.decode_tokens) if made_in else (None,) * 3
            time_ms = round(token.t - run.start, 2)
            about = (r.request_id, r.kind, r.lane, r.burst, index, cell(r.texts.get(index)))
            rows.append((*about, time_ms, token.itl_ms, *step, f"{run.slow_motion(token.t):g}", recording.info.device))
    rows.sort(key=lambda row: row[6])
    return spreadsheet(TOKEN_COLUMNS, rows)


def steps(recording: Recording) -> bytes:
    """Returns CSV in UTF-8 of each step's figures, the oldest first; of lists, their lengths. Times count from the run's
    first event."""
    run = Run(recording)

    def figure(step: StepRow, name: str) -> Any:
        value = getattr(step, name)
        if isinstance(value, list):
            return len(value)
        return round(value - run.start, 2) if name in ("t0", "t1") else value

    return spreadsheet(COLUMNS["steps"], [[figure(step, name) for name in COLUMNS["steps"]] for step in run.steps])


def requests(recording: Recording) -> bytes:
    """Returns CSV in UTF-8, requests in order of arrival.

    ``submitted_ms`` counts from the run's first event. ``late_ms`` is the time from the intended arrival to submission,
    ``sent_ms`` from submission until the last byte was sent to another server, and ``worst_gap_ms`` the longest between
    two tokens of the answer; ``ttft_queue_ms`` and the three after it are the parts of ``ttft_ms`` (see
    ``TTFTCauses``); ``tenant`` is a number if its name was not recorded; ``cache_miss`` is why part of the prompt was not
    cached; ``slow_motion`` has the factors by which steps were stretched meanwhile, separated by spaces. Unknown values are
    empty, such as titles that were not recorded, what another server did not report, and the
    finish reason of a request that is still running. ``device`` says whether times are simulated.
    """
    run = Run(recording)
    rows = []
    for r in run.requests.values():
        submitted = None if r.submitted is None else round(r.submitted - run.start, 2)
        late = None if r.arrived is None or r.submitted is None else round(r.submitted - r.arrived, 2)
        e2e = None if r.finished is None or r.submitted is None else round(r.finished - r.submitted, 2)
        tpot = None if r.tpot_ms is None else round(r.tpot_ms, 3)
        about = (r.request_id, r.kind, r.lane, r.burst, cell(r.tenant_text), r.priority, cell(r.title))
        reused = (None, None) if "cached_tokens" in run.absent else (r.cached, r.shared)
        counts = (r.prompt_tokens, *reused, r.miss and r.miss["reason"], r.tokens)
        parts: Sequence[float | None] = r.ttft_parts or [None] * len(TTFTCauses._fields)
        times = (submitted, late, r.sent_ms, r.queue_ms, r.ttft_ms, *parts, tpot, r.itl_max, e2e)
        preemptions = None if "steps" in run.absent else r.preemptions
        factors = " ".join(f"{factor:g}" for factor in run.factors(r.submitted, r.finished))
        rows.append((*about, *counts, *times, preemptions, factors, r.reason, recording.info.device))
    return spreadsheet(REQUEST_COLUMNS, rows)


def traffic(recording: Recording) -> bytes:
    """Returns JSONL that ``traffic.own`` reads, requests in order of arrival.

    Prompts are given by their lengths: a recording has titles, not prompts. Arrivals are the intended ones if recorded.
    Omits requests that began before the recording or have no answer token, and what such a file cannot hold: prompts
    over ``MAX_PROMPT``, and all but the newest ``MAX_REQUESTS`` of the last ``MAX_ARRIVAL_S``. Answers are cut to
    ``MAX_ANSWER_TOKENS``.
    """
    found = [
        OwnRequest(
            (r.submitted if r.arrived is None else r.arrived) / 1000,
            r.prompt_tokens,
            min(r.tokens, MAX_ANSWER_TOKENS),
            r.tenant_text,
            r.priority,
        )
        for r in Run(recording).requests.values()
        if r.submitted is not None and r.prompt_tokens and r.tokens and not r.skipped
    ]
    found = [request for request in found if int(request.prompt) <= MAX_PROMPT]
    last = max((request.arrival_s for request in found), default=0.0)
    recent = [request for request in found if request.arrival_s >= last - MAX_ARRIVAL_S]
    newest = sorted(recent, key=lambda request: request.arrival_s)[-MAX_REQUESTS:]
    return to_jsonl(from_first(newest)) if newest else b""
