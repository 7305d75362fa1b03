"""What the strip under the header says about a burst and about steady traffic, in one or two captions each.

A function turns facts into the figures that matter, and the forms below have the words. Times get the mark of slow
motion, ``slow``, once at the end of their sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roseplay.config import SETTINGS
from roseplay.formats.numbers import many, slowed_text, told_text, whole
from roseplay.play.story.burst_facts import NOTICED_MS, BurstFacts
from roseplay.play.story.caption import Caption, Forms, caption
from roseplay.play.story.steady_facts import SteadyFacts
from roseplay.traffic.difference import difference
from roseplay.traffic.pair import MOST_NAMED, named_value

_MUCH_SAVED = 0.5  # of the prompt tokens
_MANY_WAITED = 0.25  # of the prompts
_SIMILAR_RATE = 1.25

_BURST: tuple[Forms, ...] = (
    ("**{prompts} arrived** while {beside} streamed.", "**{prompts} arrived**."),
    (
        "**{waited}** waited for {place}; the scheduler preempted **{preempted}** and moved **{swapped}** to host memory.",
        "**{waited}** waited for {place}; the scheduler preempted **{preempted}**, so **{recomputed}** were computed again.",
        "**{waited}** waited for {place}; the scheduler preempted **{preempted}**.",
        "**{waited}** waited for {place}.",
        "Their prefill took {steps} steps, the longest **{step}**{slow}, so **{paused} paused**.",
        "Their prefill took one **{step}** step{slow}, so **{paused} paused**.",
        "Prefill came in chunks of [[{portion}]] tokens.",
        "Their first {cached} were computed before.",
        "They share their first {shared}, computed once.",
    ),
    (
        "The longest pause was **{long}**, where {usual} is usual{slow}.",
        "The longest pause was **{long}**{slow}.",
        "{whom} paused longer than **{short}**{slow}.",
    ),
)
_BURST_ALONE: tuple[Forms, ...] = (
    (
        "**{unique} different prompts arrived.**",
        "**{equal} equal prompts arrived.**",
        "**{shared_head} prompts that begin alike arrived.**",
        "**{mix} prompts arrived, every fourth long.**",
        "**{prompts} arrived.**",
    ),
    (
        "{computed} of {tokens} tokens were computed, **{cached} cached, {shared} shared**.",
        "{computed} of {tokens} tokens were computed, **{cached} cached**.",
        "{computed} of {tokens} tokens were computed, **{shared} shared**.",
        "All **{tokens}** tokens were computed.",
    ),
    "First token p50 **{first}**, the last **{last}**{slow}.",
)
_GUESSES: tuple[Forms, ...] = (
    (
        "**{accepted}** of {drafted} were right, and took no step of their own.",
        "**{one}** of {drafted} was right, and took no step of its own.",
        "**{none}** of {drafted} was right.",
    ),
)
_STEADY: tuple[Forms, ...] = (
    (
        "**{own} from your file** in {seconds} s: {done} answered, longest pause **{pause}**, first token p95 **{first}**{slow}.",
        "**{own} from your file** in {seconds} s: {done} answered, first token p95 **{first}**{slow}.",
        "**{rate} requests/s** for {seconds} s: {done} answered, longest pause **{pause}**, first token p95 **{first}**{slow}.",
        "**{rate} requests/s** for {seconds} s: {done} answered, first token p95 **{first}**{slow}.",
    ),
)
_COMPARED_STEADY: tuple[Forms, ...] = (
    ("Before, with [[{without}]] {setting}:", "Before, with {setting} [[{value}]]:"),
    (
        "{nothing} clear difference.",
        "longest pause **{pause}**, first token p95 **{first}**{slow}.",
        "longest pause **{pause}**{slow}.",
        "first token p95 **{first}**{slow}.",
    ),
)


def _ms(value: float | None) -> str:
    return f"{told_text(value or 0.0)} ms"


# -- a burst


def what_happened(facts: BurstFacts) -> Caption:
    """Returns the burst's effects on the answers that were streaming, and their cause; if none was, on its own answers."""
    arrived = {"prompts": many(facts.prompts, "prompt"), "slow": slowed_text(facts.factors)}
    alone = not _waited(facts) and (not facts.streaming or facts.worst is None)
    return caption(_BURST_ALONE, arrived | _own_answers(facts)) if alone else caption(_BURST, arrived | _effect(facts))


def _waited(facts: BurstFacts) -> bool:
    return facts.waited_for is not None and bool(facts.preempted or facts.waited >= _MANY_WAITED * facts.prompts)


def _own_answers(facts: BurstFacts) -> dict[str, str]:
    """Returns the kind of its prompts, what was computed of them, unless no steps are known, and when its answers began."""
    figures = {"first": _ms(facts.ttft_p50), "last": _ms(facts.ttft_last)}
    if facts.kind and facts.prompts > 1:
        figures[facts.kind] = whole(facts.prompts)
    if not facts.steps:
        return figures
    figures["tokens"] = whole(facts.prompt_tokens)
    if facts.saved_tokens:
        figures["computed"] = whole(facts.prompt_tokens - facts.saved_tokens)
        saved = {"cached": facts.cached_tokens, "shared": facts.saved_tokens - facts.cached_tokens}
        figures |= {name: whole(tokens) for name, tokens in saved.items() if tokens}
    return figures


def _effect(facts: BurstFacts) -> dict[str, str]:
    """Returns the figures of what mattered most: waiting, pauses that its prefill caused, or that none was long."""
    if _waited(facts):
        place = {"blocks": "free KV blocks", "batch": "a place in the batch"}[str(facts.waited_for)]
        counts = {"preempted": (facts.preempted, "running answer"), "swapped": (facts.swapped, "block")}
        counts["recomputed"] = facts.recomputed, "token"
        gave_way = {name: many(count, word) for name, (count, word) in counts.items() if count}
        return {"waited": whole(facts.waited), "place": place, **gave_way}
    limits = [facts.knobs.get(name) for name in ("prefill_max_tokens", "step_max_tokens")]
    portion = min((limit for limit in limits if limit), default=None) if facts.steps > 1 else None
    if facts.paused and facts.longest and not portion:
        steps = {"steps": whole(facts.steps)} if facts.steps > 1 else {}
        return {"step": _ms(facts.longest.ms), "paused": many(facts.paused, "streaming answer"), **steps}
    if not portion and facts.saved >= _MUCH_SAVED:
        before = facts.cached_head
        cause = {"cached" if before else "shared": many(before or facts.shared_head, "token")}
    else:
        cause = {"beside": many(facts.streaming, "answer"), **({"portion": whole(portion)} if portion else {})}
    return {**cause, **_longest_pause(facts)}


def _longest_pause(facts: BurstFacts) -> dict[str, str]:
    """Returns the longest pause; only for one that readers hardly notice does a sentence say that none was longer."""
    assert facts.worst
    if facts.worst.ms >= NOTICED_MS:
        usual = {} if facts.usual_ms is None else {"usual": _ms(facts.usual_ms)}
        return {"long": _ms(facts.worst.ms), **usual}
    whom = "No answer"
    if facts.others_ms is not None and facts.others_ms > facts.worst.ms:
        whom = f"None of the {whole(facts.streaming)} answers" if facts.streaming > 1 else "The answer never"
    return {"short": _ms(facts.worst.ms), "whom": whom}


def guesses(facts: BurstFacts) -> Caption:
    """Returns how many of the tokens guessed for its answers were right; empty if none were."""
    if not facts.drafted:
        return []
    right = {0: "none", 1: "one"}.get(facts.accepted, "accepted")
    text = whole(facts.accepted) if facts.accepted else "None"
    return caption(_GUESSES, {right: text, "drafted": many(facts.drafted, "guessed token")})


# -- steady traffic


def how_it_goes(facts: SteadyFacts) -> Caption:
    figures = {
        **({"own": many(facts.sent, "request")} if facts.own else {"rate": f"{facts.rate:.2g}"}),
        "seconds": whole(facts.seconds) if facts.seconds >= 2 else f"{facts.seconds:.1f}",
        "done": whole(facts.done),
        "first": _ms(facts.ttft_p95),
        "slow": _slow(facts),
    }
    return caption(_STEADY, figures if facts.worst_ms is None else {**figures, "pause": _ms(facts.worst_ms)})


def compared(facts: SteadyFacts | None, before: SteadyFacts | None) -> Caption:
    """Returns how it was answered with the previous settings, over an equal time; empty if that cannot be compared."""
    if facts is None or before is None or min(facts.rate, before.rate) * _SIMILAR_RATE < max(facts.rate, before.rate):
        return []
    differing = changed_settings(before.knobs, facts.knobs)
    if len(differing) != 1 or differing == ["slow_motion"]:
        return []
    pause = difference([before.worst_ms], [facts.worst_ms], better="lower")
    first = difference([before.ttft_p95], [facts.ttft_p95], better="lower")
    figures = {name: _ms(one.a) for name, one in (("pause", pause), ("first", first)) if one.clear} or {"nothing": "no"}
    return caption(_COMPARED_STEADY, {"slow": _slow(facts), **named_change(before.knobs, facts.knobs), **figures})


def _slow(facts: SteadyFacts) -> str:
    return slowed_text([facts.knobs.get("slow_motion", 1)])  # a change of a setting begins another stretch


# -- what comparisons have in common


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name, value in before.items() if now.get(name) != value]


def named_change(shown: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str]:
    """Returns the setting that differs and its ``value`` in ``shown``; as ``settings``, the first of several."""
    names = changed_settings(shown, other)
    if len(names) != 1:
        texts = [f"{_short(name)} {named_value(name, shown[name])[1]}" for name in names[:MOST_NAMED]]
        more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
        return {"settings": " and ".join([*texts, *more])}
    (name,) = names
    if shown[name] is None:
        return {"setting": _short(name), "without": "no"}
    return {"setting": _short(name), "value": named_value(name, shown[name])[1]}


def _short(name: str) -> str:
    setting = SETTINGS.get(name)
    return (setting.short or setting.label.lower()) if setting else name.replace("_", " ")
