"""The two lines about a burst: its effects, and how a comparable one did under other settings."""

from __future__ import annotations

from collections.abc import Sequence

from roseplay.formats.numbers import many, slowed_text, whole
from roseplay.play.story.burst_facts import NOTICED_MS, BurstFacts
from roseplay.play.story.text import Segments, knob_text, segments
from roseplay.traffic.difference import Difference, difference

_MUCH_SAVED = 0.5  # of the prompt tokens
_MANY_WAITED = 0.25  # of the prompts
_SAVED_ALIKE = 0.1  # of the prompt tokens: if two bursts differ by more, the cache made the difference


def what_happened(facts: BurstFacts) -> Segments:
    """Returns the burst's effects on the answers that were streaming, and their cause."""
    arrived = f"**{many(facts.prompts, 'prompt')} arrived**"
    waited = _waited(facts)
    if waited:
        return segments(f"{arrived}. {waited}")
    if not facts.streaming or facts.worst is None:
        return segments(f"{arrived}. No answer was streaming, so none had to wait.")
    portion = _portion(facts)
    streamed = f"{arrived} while {many(facts.streaming, 'answer')} streamed."
    if portion and facts.steps > 1:
        return segments(f"{streamed} With prefill chunks of [[{whole(portion)}]] tokens, {_longest(facts)}.")
    if facts.paused and facts.longest:
        return segments(f"{arrived}. {_prefill(facts)}, so **{_paused(facts)}**.")
    longest = _longest(facts)
    if facts.saved >= _MUCH_SAVED:
        return segments(f"{arrived}. {_shared(facts)}{', so' if _is_short(facts) else ':'} {longest}.")
    return segments(f"{streamed} {longest[0].upper()}{longest[1:]}.")


def _waited(facts: BurstFacts) -> str | None:
    """Returns the clause on requests that waited for a place or for blocks; ``None`` if that did not matter."""
    if facts.waited_for is None or (facts.waited < _MANY_WAITED * facts.prompts and not facts.preempted):
        return None
    place = {"blocks": "free KV blocks", "batch": "a place in the batch"}[facts.waited_for]
    gave_way = ""
    if facts.preempted:
        gave_way = f"; the scheduler preempted **{many(facts.preempted, 'running answer')}**"
        if facts.swapped:
            gave_way += f" and moved **{many(facts.swapped, 'block')}** to host memory"
        elif facts.recomputed:
            gave_way += f", so **{many(facts.recomputed, 'token')}** were computed again"
    return f"**{whole(facts.waited)}** waited for {place}{gave_way}."


def _portion(facts: BurstFacts) -> int | None:
    """Returns the most prompt tokens that its settings allow in a step; ``None`` for no limit."""
    limits = [facts.knobs.get(name) for name in ("prefill_max_tokens", "step_max_tokens")]
    return min((limit for limit in limits if limit), default=None)


def _prefill(facts: BurstFacts) -> str:
    assert facts.longest
    took, slowed = f"**{whole(facts.longest.ms)} ms**", slowed_text(facts.factors)
    if facts.steps == 1:
        return f"Their prefill took one {took} step{slowed}"
    return f"Their prefill took {whole(facts.steps)} steps, the longest {took}{slowed}"


def _paused(facts: BurstFacts) -> str:
    if facts.paused == 1:
        return "1 streaming answer paused"
    return f"{whole(facts.paused)} streaming answers paused"


def _shared(facts: BurstFacts) -> str:
    if facts.cached_head:
        return f"Their first {many(facts.cached_head, 'token')} were computed before"
    return f"They share their first {many(facts.shared_head, 'token')}, computed once"


def _is_short(facts: BurstFacts) -> bool:
    """Returns whether the longest pause was too short for readers to notice."""
    return facts.worst is not None and facts.worst.ms < NOTICED_MS


def _longest(facts: BurstFacts) -> str:
    """Returns the clause on the longest pause; only for a short one does it say that none was longer."""
    assert facts.worst
    longest = f"**{whole(facts.worst.ms)} ms**"
    if not _is_short(facts):
        usual = "" if facts.usual_ms is None else f", where {whole(facts.usual_ms)} ms is usual"
        return f"the longest pause was {longest}{usual}{slowed_text(facts.factors)}"
    higher = facts.others_ms is not None and facts.others_ms > facts.worst.ms
    whom = f"none of the {whole(facts.streaming)} answers" if higher and facts.streaming > 1 else "no answer"
    if higher and facts.streaming == 1:
        whom = "the answer never"
    return f"{whom} paused longer than {longest}{slowed_text(facts.factors)}"


def guesses(facts: BurstFacts) -> Segments:
    """Returns how many of the tokens guessed for its answers were right; empty if none were."""
    if not facts.drafted:
        return []
    of = f"of {many(facts.drafted, 'guessed token')}"
    if not facts.accepted:
        return segments(f"**None** {of} was right.")
    verb, own = ("was", "its") if facts.accepted == 1 else ("were", "their")
    return segments(f"**{whole(facts.accepted)}** {of} {verb} right, and took no step of {own} own.")


# -- comparison with an earlier burst


def comparison(facts: BurstFacts, before: Sequence[BurstFacts]) -> Segments:
    """Returns how the last comparable burst with other settings did; empty if there was none.

    Bursts are comparable if they have the same kind, size and answer length, both or neither arrived while answers were
    streaming, both found about as much in the prefix cache, and no setting was changed during either.
    """
    other = next((one for one in reversed(before) if _comparable(facts, one)), None)
    if other is None:
        return []
    pause, first = _differences(facts, other)
    opening = f"{'The same burst' if _same(facts, other) else 'The last such burst'} with {_setting(facts, other)}:"
    if not pause.clear and not first.clear:
        return segments(f"{opening} no clear difference.")
    now, then, slowed = f"**{whole(facts.ttft_p50)} ms**", whole(other.ttft_p50), slowed_text(facts.factors)
    if not pause.clear:
        unclear = " No clear difference in the worst pause." if pause.verdict == "within" else ""
        return segments(f"{opening} first tokens after {then} ms instead of {now}{slowed}.{unclear}")
    assert other.worst
    worst = f"{opening} worst pause **{whole(other.worst.ms)} ms**{slowed}."
    if not first.clear:
        return segments(f"{worst} First tokens: no clear difference.")
    if pause.verdict == first.verdict:
        return segments(f"{worst} First tokens after {now} instead of {then}{slowed}.")
    paid = "The price" if pause.verdict == "better" else "In return"
    return segments(f"{worst} {paid}: first tokens after {now} instead of {then}{slowed}.")


def _comparable(facts: BurstFacts, other: BurstFacts) -> bool:
    alike = (facts.kind, facts.prompts, facts.answer, bool(facts.streaming))
    return (
        facts.kind is not None
        and alike == (other.kind, other.prompts, other.answer, bool(other.streaming))
        and (abs(facts.saved - other.saved) <= _SAVED_ALIKE or _cache_differs(facts, other))
        and facts.undisturbed
        and other.undisturbed
        and facts.knobs != other.knobs
        and facts.knobs.get("slow_motion") == other.knobs.get("slow_motion")
    )


def _cache_differs(facts: BurstFacts, other: BurstFacts) -> bool:
    """Returns whether a setting makes their use of the cache differ."""
    return any(facts.knobs.get(name) != other.knobs.get(name) for name in ("prefix_cache", "same_step_sharing"))


def _same(facts: BurstFacts, other: BurstFacts) -> bool:
    return facts.seed is not None and facts.seed == other.seed


def _differences(facts: BurstFacts, other: BurstFacts) -> tuple[Difference, Difference]:
    """Returns how the worst pause and the median TTFT differ from another burst's."""
    pauses = [[one.worst.ms] if one.worst else [] for one in (other, facts)]
    return (
        difference(*pauses, better="lower"),
        difference([other.ttft_p50], [facts.ttft_p50], better="lower"),
    )


def _setting(facts: BurstFacts, other: BurstFacts) -> str:
    """Returns the setting in which the other burst differs, with its value then."""
    differing = [name for name, value in other.knobs.items() if facts.knobs.get(name) != value]
    return knob_text(differing[0], other.knobs[differing[0]]) if len(differing) == 1 else "other settings"
