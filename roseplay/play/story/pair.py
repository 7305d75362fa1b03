"""Two comparable bursts as a picture: which bursts can be compared, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Sequence

from roseplay.config import Knobs
from roseplay.formats.numbers import many, number_text, slowed_text, whole
from roseplay.play.bursts import LABELS
from roseplay.play.story.burst_facts import BurstFacts
from roseplay.play.story.caption import for_page
from roseplay.play.story.words import before_and_after, burst_differences, changed_settings
from roseplay.settings import settings_of
from roseplay.traffic.pair import Pair, PairFigure, Side, figure, side, title

_ALIKE = 0.1  # shares of prompt tokens may differ by this
_FEW = 1  # numbers of answers that were streaming
_WHOLE = 10  # from here on, figures have no decimals
_AFTER, _AFTER_MS = 1.5, 1500.0  # how long after the last first token it still shows gaps: a ratio and a time
_KNOBS = settings_of(Knobs)


def comparable(facts: BurstFacts, other: BurstFacts) -> bool:
    """Whether two bursts asked the same of an engine in the same state under other settings.

    Their seeds may differ, which choose the words of their prompts but not how long they are.
    """
    alike = (facts.kind, facts.prompts, facts.answer, bool(facts.streaming), facts.factors)
    cached = any(facts.knobs.get(name) != other.knobs.get(name) for name in ("prefix_cache", "same_step_sharing"))
    return (
        facts.kind is not None
        and alike == (other.kind, other.prompts, other.answer, bool(other.streaming), other.factors)
        and abs(facts.streaming - other.streaming) <= _FEW
        and abs(facts.prompt_tokens - other.prompt_tokens) <= _ALIKE * facts.prompt_tokens
        and (abs(facts.saved - other.saved) <= _ALIKE or cached)
        and facts.undisturbed
        and other.undisturbed
        and facts.knobs != other.knobs
    )


def last_comparable(facts: BurstFacts, before: Sequence[BurstFacts]) -> BurstFacts | None:
    """Returns the last of these that can be compared with ``facts``."""
    return next((one for one in reversed(before) if comparable(facts, one)), None)


def burst_pair(before: BurstFacts, after: BurstFacts) -> Pair:
    """Returns the picture of two comparable bursts that have been answered."""
    names = changed_settings(before.knobs, after.knobs)
    reach = _AFTER * max(one.done - one.arrived for one in (before, after)) + _AFTER_MS
    same = "the same " if after.seed is not None and after.seed == before.seed else ""
    readers = many(after.streaming, "answer") + (" that was" if after.streaming == 1 else " that were") + " streaming"
    return {
        "sentence": for_page(before_and_after(before, after)),
        "about": f"{same}{many(after.prompts, 'prompt')}, {LABELS.get(after.kind or '', after.kind)}",
        "shows": readers if after.streaming else "answers of the burst",
        "moment": "burst",
        "unit": f"ms{slowed_text(after.factors)}",
        "sides": [_side(one, names, reach) for one in (before, after)],
        "figures": _figures(before, after),
    }


def _side(facts: BurstFacts, names: Sequence[str], reach: float) -> Side:
    worst = facts.worst and (facts.worst.t - facts.arrived, facts.worst.ms)
    named = title(_KNOBS, {name: facts.knobs.get(name) for name in names})
    return side(named, [gap for gap in facts.gaps if gap[0] <= reach], worst, facts.ttft)


def _figures(before: BurstFacts, after: BurstFacts) -> list[PairFigure]:
    pause, first = burst_differences(before, after)
    unit = f"ms{slowed_text(after.factors)}"
    opposite = pause.clear and first.clear and first.verdict != pause.verdict
    figures = []
    if before.worst and after.worst:
        texts = _amount(before.worst.ms), _amount(after.worst.ms)
        figures.append(figure("longest pause", *texts, unit, "effect" if pause.clear else ""))
    elif before.own_gap_ms and after.own_gap_ms:
        figures.append(figure("gap between tokens", _amount(before.own_gap_ms), _amount(after.own_gap_ms), unit))
    texts = _amount(before.ttft_p50), _amount(after.ttft_p50)
    figures.append(figure("first tokens", *texts, unit, "price" if opposite else "effect" if first.clear else ""))
    if before.tokens_per_s and after.tokens_per_s:
        figures.append(figure("throughput", _amount(before.tokens_per_s), _amount(after.tokens_per_s), "tok/s"))
    return figures


def _amount(value: float) -> str:
    return whole(value) if value >= _WHOLE else number_text(value)
