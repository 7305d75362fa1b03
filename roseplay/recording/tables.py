"""A run as tables with a row per step, token or request, and as traffic that can be played again."""

from __future__ import annotations

from typing import Any

from roseplay.engine.records import Column, RequestRecord, StepRow, columns_of
from roseplay.engine.ttft_causes import TTFTCauses
from roseplay.formats.spreadsheet import cell, spreadsheet
from roseplay.recording.reader import Recording
from roseplay.recording.recorded_run import RecordedRun
from roseplay.recording.run import RequestRun
from roseplay.traffic import own

TOKEN_COLUMNS = (
    "request", "kind", "lane", "burst", "token", "text", "time_ms", "itl_ms", "step", "step_prompt_tokens",
    "step_decode_tokens", "slow_motion", "device",
)  # fmt: skip
_PARTS = [f"ttft_{cause.removesuffix('_s')}_ms" for cause in TTFTCauses._fields]
_STEP, _REQUEST = columns_of(StepRow), columns_of(RequestRecord)


def tokens(recording: Recording) -> bytes:
    """Returns CSV in UTF-8, tokens in order of time.

    ``slow_motion`` is the factor by which the token's step was stretched; ``time_ms`` counts from the run's first
    event, ``token`` from 0 in each request. Unknown values are empty, such as the ITL of a first token and texts that
    were not recorded. ``device`` says whether times are simulated. An apostrophe precedes text that a spreadsheet would
    run as a formula.
    """
    run = RecordedRun(recording)
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
    """Returns CSV in UTF-8 of each step's figures, the oldest first; of lists, their lengths.

    Times count from the run's first event. ``slow_motion`` is the factor by which the step was stretched; ``device`` says
    whether times are simulated.
    """
    run = RecordedRun(recording)
    rows = []
    for step in run.steps:
        figures = [_value(run, column, getattr(step, name)) for name, column in _STEP.items()]
        rows.append([*figures, f"{run.slow_motion(step.t1):g}", recording.info.device])
    return spreadsheet([*_STEP, "slow_motion", "device"], rows)


def requests(recording: Recording) -> bytes:
    """Returns CSV in UTF-8 of what is known of each request (see ``RequestRecord``), in order of arrival.

    Times count from the run's first event. ``late_ms`` is the time from the intended arrival to submission;
    ``ttft_queue_ms`` and the three after it are the parts of ``ttft_ms`` (see ``TTFTCauses``); ``tenant`` is a number if
    its name was not recorded; ``miss`` is why part of the prompt was not cached; ``slow_motion`` has the factors by which
    steps were stretched meanwhile, separated by spaces. Unknown values are empty, such as titles that were not recorded,
    what another server did not report, and the reason of a request that is still running. ``device`` says whether times
    are simulated.
    """
    run = RecordedRun(recording)
    rows = [_request(run, request) for request in run.requests.values()]
    return spreadsheet(list(_request(run, RequestRun(0))), [list(row.values()) for row in rows])


def _request(run: RecordedRun, r: RequestRun) -> dict[str, object]:
    cells: dict[str, object] = {"request": r.request_id}
    for name, column in _REQUEST.items():
        value = getattr(r, name)
        if name == "ttft_parts":
            cells |= dict.fromkeys(_PARTS) if value is None else zip(_PARTS, value, strict=True)
        else:
            suffix = {"time": "_ms", "ms": "_ms", "tokens": "_tokens"}.get(column.unit, "")
            cells[name if f"_{name}".endswith(suffix) else name + suffix] = _value(run, column, value)
    cells |= {"tenant": cell(r.tenant_text), "title": cell(r.title), "miss": r.miss and r.miss["reason"]}
    if "cached_tokens" in run.absent:
        cells |= {"cached_tokens": None, "shared_tokens": None}
    if "steps" in run.absent:
        cells["preemptions"] = None
    late = None if r.arrived is None or r.submitted is None else round(r.submitted - r.arrived, 2)
    tpot = None if r.tpot_ms is None else round(r.tpot_ms, 3)
    factors = " ".join(f"{factor:g}" for factor in run.factors_between(r.submitted, r.finished))
    return {**cells, "late_ms": late, "tpot_ms": tpot, "slow_motion": factors, "device": run.recording.info.device}


def _value(run: RecordedRun, column: Column, value: Any) -> Any:
    if isinstance(value, list):
        return len(value)
    if column.unit == "time" and value is not None:
        return round(value - run.start, 2)
    return cell(value) if isinstance(value, str) else value


def traffic(recording: Recording) -> bytes:
    """Returns JSONL that ``traffic.own`` reads, requests in order of arrival.

    Prompts are given by their lengths: a recording has titles, not prompts. Arrivals are the intended ones if recorded.
    Omits requests that began before the recording or have no answer token, and what such a file cannot hold: prompts
    over ``MAX_PROMPT``, and all but the newest ``MAX_REQUESTS`` of the last ``MAX_ARRIVAL_S``. Answers are cut to
    ``MAX_ANSWER_TOKENS``.
    """
    own_requests = [
        own.OwnRequest(
            (r.submitted if r.arrived is None else r.arrived) / 1000,
            r.prompt_tokens,
            min(r.tokens, own.MAX_ANSWER_TOKENS),
            r.tenant_text,
            r.priority,
        )
        for r in RecordedRun(recording).requests.values()
        if r.submitted is not None and r.prompt_tokens and r.tokens and not r.skipped
    ]
    own_requests = [request for request in own_requests if int(request.prompt) <= own.MAX_PROMPT]
    last = max((request.arrival_s for request in own_requests), default=0.0)
    recent = [request for request in own_requests if request.arrival_s >= last - own.MAX_ARRIVAL_S]
    newest = sorted(recent, key=lambda request: request.arrival_s)[-own.MAX_REQUESTS :]
    return own.to_jsonl(own.from_first(newest)) if newest else b""
