"""The traffic of a run as JSONL, to be played again: when each request arrived, and how long its prompt and answer were."""

from __future__ import annotations

from roseplay.recording.reader import Recording
from roseplay.recording.run import Run
from roseplay.traffic.own import OwnRequest, from_first, to_jsonl


def traffic(recording: Recording) -> bytes:
    """Returns JSONL as ``traffic.own`` reads it, requests by arrival.

    Prompts are given by their lengths: a recording has titles, not prompts. Arrivals are those that were intended, where
    they were recorded. Requests that were submitted before the
    recording begins, or that have no answer token, are left out.
    """
    found = [
        OwnRequest((r.submitted if r.arrived is None else r.arrived) / 1000, r.prompt_tokens, r.num_tokens)
        for r in Run(recording).requests.values()
        if r.submitted is not None and r.prompt_tokens and r.num_tokens and not r.skipped
    ]
    return to_jsonl(from_first(found)) if found else b""
