"""Comparable bursts under two settings, before and after: which ones can be compared, what is said and drawn of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from roseplay.formats.numbers import many, slowed_text, told_text
from roseplay.play.bursts import LABELS
from roseplay.play.story.burst_facts import BurstFacts
from roseplay.play.story.caption import Forms, caption, for_page
from roseplay.play.story.words import changed_settings, named_change
from roseplay.traffic.difference import Better, Difference, Range, difference
from roseplay.traffic.pair import Mark, Pair, PairFigure, Side, figure, side, title

_ALIKE = 0.1  # shares of prompt tokens may differ by this
_LOAD = 0.2  # shares of the processors' time that other programs take may differ by this
_FEW = 1  # numbers of answers that were streaming
_AFTER, _AFTER_MS = 1.5, 1500.0  # how long after the last first token it still shows gaps: a ratio and a time
_FIGURES = 3
BEFORE_AND_AFTER: tuple[Forms, ...] = (
    ("With [[{without}]] {setting},", "With {setting} [[{value}]],", "With {settings},"),
    (
        "these bursts cannot tell: the load by {others} changed between them.",
        "{nothing} clear difference.",
        "{effect} **{effect_after}** instead of {effect_before}{effect_slow}.",
    ),
    ("{other} {other_after} instead of {other_before}{other_slow}.", "{unclear}: no clear difference."),
    ("{each} ran {times}.",),
)
_TIMES = {1: "once", 2: "twice"}

Bursts = Sequence[BurstFacts]  # under the same settings, as many before as after


class Measure(NamedTuple):
    """What bursts are compared by: ``title`` over its two values, ``words`` before them in a sentence."""

    title: str
    words: str
    of: Callable[[Any], float | None]  # of its facts
    unit: str = "ms"
    better: Better = "lower"


_PAUSE = Measure("longest pause", "the longest pause was", lambda facts: facts.worst.ms if facts.worst else None)
_FIRST = Measure("first tokens", "half of the first tokens came within", lambda facts: facts.ttft_p50)
_LAST = Measure("last answers begin", "the last answers began after", lambda facts: facts.ttft_last)
_GAP = Measure("time per token", "a token took", lambda facts: facts.own_gap_ms)
_READER = Measure("readers' usual wait", "readers usually waited", lambda facts: facts.reader_gap_ms)
_AGAIN = Measure("tokens computed again", "tokens computed again were", lambda facts: facts.recomputed, "tokens")
_COMPUTED = Measure("tokens computed", "tokens computed were", lambda it: it.prompt_tokens - it.saved_tokens, "tokens")
_RATE = Measure("throughput", "throughput was", lambda facts: facts.tokens_per_s, "tok/s", "higher")
_FIRST_TOKENS = {_FIRST: "half of the first tokens after", _LAST: "last first token after"}
_USUAL = (_PAUSE, _FIRST, _RATE)
# What each of these settings is for comes first.
_FOR: Mapping[str, tuple[Measure, ...]] = {
    "max_batch_size": (_LAST, _GAP),
    "prefill_max_tokens": (_PAUSE, _FIRST),
    "preemption_mode": (_AGAIN, _LAST),
    "prefill_interval": (_READER, _FIRST),
    "prefix_cache": (_FIRST, _COMPUTED),
    "same_step_sharing": (_FIRST, _COMPUTED),
    "speculative_tokens": (_GAP,),
}


class Compared(NamedTuple):
    """A measure of bursts, its values before and after, and the mark of slow motion if it is a time.

    ``meant`` is whether the settings that differ are for it. The other measures of a run differ by chance as well, so
    that nothing is said of them, unless it is known of no setting what it is for.
    """

    measure: Measure
    difference: Difference
    texts: tuple[str, ...]
    slow: str
    meant: bool


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


def load_changed(before: Bursts, after: Bursts) -> bool:
    """Whether other programs may explain how bursts differ."""
    shares = [burst.others for burst in (*before, *after) if burst.others is not None]
    return bool(shares) and max(shares) - min(shares) > _LOAD


def last_comparable(facts: BurstFacts, before: Sequence[BurstFacts]) -> BurstFacts | None:
    """Returns the last of these that can be compared with ``facts``."""
    return next((burst for burst in reversed(before) if comparable(facts, burst)), None)


def compared(before: Bursts, after: Bursts) -> list[Compared]:
    """Returns how comparable bursts differ in what the settings that differ are for, at most ``_FIGURES`` of it."""
    first, last = before[-1], after[-1]
    meant = [measure for name in changed_settings(first.knobs, last.knobs) for measure in _FOR.get(name, ())]
    measures = list(dict.fromkeys([*meant, *_USUAL, _GAP]))
    return rows_of(measures, before, after, meant=meant or measures)[:_FIGURES]


def rows_of(
    measures: Sequence[Measure], before: Sequence[Any], after: Sequence[Any], meant: Sequence[Measure] | None = None
) -> list[Compared]:
    """Returns how facts before and after differ in the measures that are known of all; all of them are meant by default."""
    rows = []
    for measure in measures:
        values = [[measure.of(facts) for facts in some] for some in (before, after)]
        if all(value is not None for side in values for value in side) and any(map(any, values)):
            slow = slowed_text(after[-1].factors) if measure.unit == "ms" else ""
            differs = difference(*values, better=measure.better)
            texts = tuple(_range_text(some) for some in (differs.a_range, differs.b_range) if some)
            rows.append(Compared(measure, differs, texts, slow, meant is None or measure in meant))
    return rows


def effect_of(rows: Sequence[Compared]) -> Compared | None:
    """Returns the first that is meant and differs clearly."""
    return next((row for row in rows if row.meant and row.difference.clear), None)


def _range_text(values: Range) -> str:
    return "–".join(dict.fromkeys(map(told_text, values)))


def before_and_after(before: Bursts, after: Bursts) -> dict[str, str]:
    """Returns the figures of ``BEFORE_AND_AFTER``: how the later of comparable bursts did with their settings."""
    figures = named_change(after[-1].knobs, before[-1].knobs)
    if load_changed(before, after):
        return {**figures, "others": "other programs"}
    figures |= {"each": "Each", "times": _TIMES.get(len(after), f"{len(after)} times")}
    rows = [row for row in compared(before, after) if row.meant]
    clear, unclear = ([row for row in rows if row.difference.clear is yes] for yes in (True, False))
    if not clear:
        return {**figures, "nothing": "no"}
    figures |= _values(clear[0], "effect", "")
    if clear[1:]:
        words = {"price": "The price: ", "gain": "In return: "}.get(_mark(clear[1], clear[0]), "")
        figures |= _values(clear[1], "other", words or " ")
    elif unclear:
        figures["unclear"] = unclear[0].measure.title.capitalize()
    return figures


def _values(row: Compared, name: str, words: str) -> dict[str, str]:
    unit = "" if row.measure.unit == "tokens" else f" {row.measure.unit}"
    phrase = row.measure.words.capitalize() if words == " " else words + row.measure.words
    before, after = (text + unit for text in row.texts)
    return {name: phrase, f"{name}_after": after, f"{name}_before": before, f"{name}_slow": row.slow}


def _mark(row: Compared, effect: Compared | None) -> Mark:
    """Returns what a figure is beside the effect, which is the first one that differs clearly."""
    if not row.difference.clear or effect is None:
        return "same"
    if row is effect or not row.meant or row.difference.verdict == effect.difference.verdict:
        return "effect" if row is effect else ""
    return "price" if row.difference.verdict == "worse" else "gain"


def burst_pair(before: Bursts, after: Bursts) -> Pair:
    """Returns the picture of comparable bursts that have been answered: the newest of each side, and the figures of all."""
    newest = before[-1], after[-1]
    one, other = newest
    names = changed_settings(one.knobs, other.knobs)
    reach = _AFTER * max(burst.done - burst.arrived for burst in newest) + _AFTER_MS
    same = "the same " if other.seed is not None and other.seed == one.seed else ""
    readers = f"of {many(other.streaming, 'reader')}, strong until the prompts had their first tokens"
    rows = compared(before, after)
    tells = not load_changed(before, after)
    effect = effect_of(rows) if tells else None
    measure = effect.measure if effect else _PAUSE
    return {
        "sentence": for_page(caption(BEFORE_AND_AFTER, before_and_after(before, after))),
        "about": f"{same}{many(other.prompts, 'prompt')}, {LABELS.get(other.kind or '', other.kind)}{_load(newest)}",
        "shows": readers if other.streaming else "of the burst's answers",
        "longest": _FIRST_TOKENS.get(measure, "readers' longest pause"),
        "moment": "burst",
        "unit": f"ms{slowed_text(other.factors)}",
        "sides": [_side(burst, names, reach, measure) for burst in newest],
        "figures": [figure_of(row, effect) for row in rows],
    }


def _load(bursts: Bursts) -> str:
    shares = [f"{burst.others:.0%}" for burst in bursts if burst.others is not None]
    return f", beside other programs on {' and '.join(shares)} of the processors" if len(shares) == len(bursts) else ""


def _side(facts: BurstFacts, names: Sequence[str], reach: float, measure: Measure) -> Side:
    """Returns a side on which the value of a measure is marked: a gap, or a time to first token."""
    pause = facts.worst if measure is _PAUSE else None  # its length as it is told
    worst = pause and (pause.t - facts.arrived, round(pause.ms, 0 if pause.ms >= 10 else 2))
    named = title({name: facts.knobs.get(name) for name in names})
    gaps, around = ([gap for gap in some if gap[0] <= reach] for some in (facts.gaps, facts.gaps_around))
    first = measure.of(facts) if measure in _FIRST_TOKENS else None
    return side(named, gaps, worst, facts.ttft, around, facts.prefills, facts.reader, first)


def figure_of(row: Compared, effect: Compared | None) -> PairFigure:
    """Returns a figure of a picture in which ``effect`` stands out."""
    before, after = row.texts
    return figure(row.measure.title, before, after, row.measure.unit + row.slow, _mark(row, effect))
