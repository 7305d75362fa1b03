"""The traffic of a run as JSONL, to be played again: when each request arrived, and how long its prompt and answer were."""

from __future__ import annotations

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


def traffic(recording: Recording) -> bytes:
    """Returns JSONL as ``traffic.own`` reads it, requests by arrival.

    Prompts are given by their lengths: a recording has titles, not prompts. Arrivals are those that were intended, where
    they were recorded. Left out are requests that were submitted before the recording begins or have no answer token,
    and what such a file cannot hold: prompts over ``MAX_PROMPT``, and all but the newest ``MAX_REQUESTS`` of the last
    ``MAX_ARRIVAL_S``. Answers are cut to ``MAX_ANSWER_TOKENS``.
    """
    found = [
        OwnRequest(
            (r.submitted if r.arrived is None else r.arrived) / 1000,
            r.prompt_tokens,
            min(r.num_tokens, MAX_ANSWER_TOKENS),
        )
        for r in Run(recording).requests.values()
        if r.submitted is not None and r.prompt_tokens and r.num_tokens and not r.skipped
    ]
    found = [request for request in found if int(request.prompt) <= MAX_PROMPT]
    last = max((request.arrival_s for request in found), default=0.0)
    recent = [request for request in found if request.arrival_s >= last - MAX_ARRIVAL_S]
    newest = sorted(recent, key=lambda request: request.arrival_s)[-MAX_REQUESTS:]
    return to_jsonl(from_first(newest)) if newest else b""
