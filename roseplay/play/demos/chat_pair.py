"""The picture of a demo's chats under two settings: when their tokens came, in which steps, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from roseplay.formats.numbers import many, slowed_text
from roseplay.play.demos.asked import ChatFacts
from roseplay.play.story.burst_facts import BurstFacts
from roseplay.play.story.caption import Caption, for_page
from roseplay.play.story.pair import Measure, effect_of, figure_of, rows_of
from roseplay.play.story.words import changed_settings
from roseplay.traffic.pair import Pair, Side, side, title

_FIRST = Measure("last chat's first token", "", lambda chats: chats.first_token)
_STEPS = Measure("steps of the longest answer", "", lambda chats: chats.steps, "steps")
_STEP = Measure("time per step", "", lambda chats: chats.step)
_BURST = Measure("the burst's first tokens", "", lambda burst: burst.ttft_p50)
# What each of these settings is for comes first.
_FOR: Mapping[str, tuple[Measure, ...]] = {"speculative_tokens": (_STEPS, _STEP), "scheduling_policy": (_FIRST,)}


def chat_pair(before: ChatFacts, after: ChatFacts, bursts: Sequence[BurstFacts], told: Caption, busy: bool) -> Pair:
    """Returns the picture of chats that were asked the same twice, behind these bursts if there are any; ``told`` is its
    sentence, ``busy`` whether other programs kept the machine busy."""
    names = changed_settings(before.knobs, after.knobs)
    measures = [measure for name in names for measure in _FOR.get(name, ())]
    rows = rows_of(measures, [before], [after])
    rows += rows_of([_BURST], bursts[:1], bursts[1:2]) if len(bursts) > 1 else []
    effect, behind = effect_of(rows), f", behind a burst of {bursts[0].prompts}" if bursts else ""
    return {
        "sentence": for_page(told),
        "about": f"the same {many(len(after.tokens), 'prompt')}{behind}{', beside other programs' if busy else ''}",
        "shows": "of the chats",
        "longest": _FIRST.title,
        "moment": "prompts",
        "unit": f"ms{slowed_text(after.factors)}",
        "boxes": "steps",
        "sides": [_side(chats, names, measures) for chats in (before, after)],
        "figures": [figure_of(row, None if busy and row is not effect else effect) for row in rows],  # no price
    }


def _side(chats: ChatFacts, names: Sequence[str], measures: Sequence[Measure]) -> Side:
    named = title({name: chats.knobs.get(name) for name in names})
    if _STEPS in measures:
        named += [[f": {chats.steps} steps", ""]]
    gaps = [(later, later - t) for tokens in chats.tokens for t, later in pairwise(tokens) if later > t]
    last = max(chats.tokens, default=(), key=lambda tokens: tokens[0 if _FIRST in measures else -1])
    first = chats.first_token if _FIRST in measures else None
    return side(named, gaps, None, [it[0] for it in chats.tokens], steps=chats.computed, reader=last, first=first)
