"""Explains why part of a prompt was not cached, as far as a tab may know.

A prompt is shown only to the tab that sent it, and the continuation of another prompt only if that is in one of the
tab's own lanes. It is not shown where a prompt differs from other people's, because those could then be guessed token
by token; nor whose prompt is nearest, because that would reveal whether a guessed token is right.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from roseplay.core.cache_miss import Miss, MissReason
from roseplay.engine.records import MissRecord
from roseplay.recording.request_registry import RequestRegistry, TrackedRequest

MOST_BEFORE, MOST_AFTER = 160, 80  # tokens of a prompt that are shown before and after the first computed one


def miss_of(tracked: TrackedRequest, registry: RequestRegistry) -> MissRecord | None:
    """Returns why part of a request's prompt was not cached, for all tabs; ``None`` if all of it was.

    ``position`` and ``request`` are ``None`` unless the prompt that it differs from came from the same tab. If a whole
    block is the same but still being computed, ``request`` is the one that computes it.
    """
    miss = tracked.stream.miss
    if miss is None:
        return None
    own = _is_own(miss, tracked, registry)
    named = miss.request_id >= 0 and (own or miss.reason is MissReason.COMPUTING)
    return MissRecord(
        str(miss.reason),
        miss.found,
        position=miss.position if own and miss.position >= 0 else None,
        request=miss.request_id if named else None,
        step=miss.step_id if miss.step_id >= 0 else None,
    )


def _is_own(miss: Miss, tracked: TrackedRequest, registry: RequestRegistry) -> bool:
    if miss.request_id < 0:
        return True
    sender = registry.sender(miss.request_id)
    return bool(tracked.tab) and sender is not None and sender.tab == tracked.tab


def describe_prompt(
    tracked: TrackedRequest, registry: RequestRegistry, tokenizer: Any, *, tab_id: str
) -> dict[str, object]:
    """Returns which part of a request's prompt was cached, as JSON.

    ``text`` is null unless the tab sent it and its tokens are known: the part that was ``found``, what is the ``same`` after it, the token that
    ``differs``, and the ``rest``; ``cut`` counts tokens left out at both ends. ``nearest`` has the lane of the nearest
    prompt and its continuation, null unless that is in a lane of the tab.
    """
    miss, told = tracked.stream.miss, miss_of(tracked, registry)
    own, ids = bool(tab_id) and tracked.tab == tab_id, tracked.stream.prompt_token_ids
    sender = registry.sender(miss.request_id) if own and miss is not None else None
    nearest = None
    if miss is not None and miss.tokens and sender is not None and sender.tab == tab_id and sender.lane is not None:
        nearest = {"lane": sender.lane, "text": _decode(tokenizer, list(miss.tokens))}
    return {
        "request": tracked.request_id,
        "prompt": tracked.prompt_tokens,
        "cached": tracked.cached + tracked.shared,
        "miss": None if told is None else asdict(told),
        "text": _pieces(ids, told, tokenizer) if own and ids else None,
        "nearest": nearest,
    }


def _pieces(ids: list[int], told: MissRecord | None, tokenizer: Any) -> dict[str, object]:
    start = told.found if told is not None else len(ids)
    position = told.position if told is not None and told.position is not None else start
    first, end = max(0, start - MOST_BEFORE), min(len(ids), position + MOST_AFTER)
    # Taken from one text, so that spaces and characters made of several tokens come out right.
    ends = [len(_decode(tokenizer, ids[first:stop]).rstrip("\ufffd")) for stop in (start, position, position + 1)]
    text = _decode(tokenizer, ids[first:end])
    differs = told is not None and told.reason == "differs" and told.position is not None
    return {
        "found": text[: ends[0]],
        "same": text[ends[0] : ends[1]],
        "differs": text[ends[1] : ends[2]] if differs else "",
        "rest": text[ends[2] if differs else ends[1] :],
        "cut": [first, len(ids) - end],
    }


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids)) if tokenizer is not None else " ".join(map(str, ids))
