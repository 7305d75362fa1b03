"""A run as a table, one row per token, for a spreadsheet or a data frame."""

from __future__ import annotations

from roseplay.recording.reader import Recording
from roseplay.recording.run import Run
from roseplay.spreadsheet import cell, spreadsheet

COLUMNS = (
    "request", "kind", "lane", "burst", "token", "text", "time_ms", "itl_ms", "step", "step_prompt_tokens",
    "step_decode_tokens", "slow_motion",
)  # fmt: skip


def tokens(recording: Recording) -> bytes:
    """Returns CSV in UTF-8, tokens in order of their times.

    ``slow_motion`` is the factor by which the token's step was stretched; ``time_ms`` counts from the run's first
    event, ``token`` from 0 in each request. Unknown values are empty, such as the ITL of a first token and texts that
    were not recorded. A text that a spreadsheet would run as a formula is preceded by an apostrophe.
    """
    run = Run(recording)
    rows = []
    for r in run.requests.values():
        for index, token in enumerate(r.tokens, r.skipped):
            made_in = token.step
            step = (made_in.step_id, made_in.prompt_tokens, made_in.decode_tokens) if made_in else (None,) * 3
            time_ms = round(token.t - run.start, 2)
            about = (r.request_id, r.kind, r.lane, r.burst, index, cell(r.texts.get(index)))
            rows.append((*about, time_ms, token.itl_ms, *step, f"{run.slow_motion(token.t):g}"))
    rows.sort(key=lambda row: row[6])
    return spreadsheet(COLUMNS, rows)
