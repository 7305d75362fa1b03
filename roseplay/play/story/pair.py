"""Two comparable bursts: which ones can be compared, what is said of them, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from roseplay.config import Knobs
from roseplay.formats.numbers import many, number_text, slowed_text, whole
from roseplay.play.bursts import LABELS
from roseplay.play.story.burst_facts import BurstFacts
from roseplay.play.story.caption import Caption, Forms, caption, for_page
from roseplay.play.story.words import changed_settings, named_change
from roseplay.settings import settings_of
from roseplay.traffic.difference import Better, Difference, difference
from roseplay.traffic.pair import Mark, Pair, PairFigure, Side, figure, side, title

_ALIKE = 0.1  # shares of prompt tokens may differ by this
_FEW = 1  # numbers of answers that were streaming
_AFTER, _AFTER_MS = 1.5, 1500.0  # how long after the last first token it still shows gaps: a ratio and a time
_FIGURES = 3
_WHOLE = 10  # from here on, figures have no decimals
_KNOBS = settings_of(Knobs)
_BEFORE_AND_AFTER: tuple[Forms, ...] = (
    ("With [[{without}]] {setting},", "With {setting} [[{value}]],", "With {settings},"),
    ("{nothing} clear difference.", "{effect} **{after}** instead of {before}{slow}."),
    ("{other} {other_after} instead of {other_before}{other_slow}.", "{unclear}: no clear difference."),
)


class Measure(NamedTuple):
    """What bursts are compared by: ``title`` over its two values, ``words`` before them in a sentence."""

    title: str
    words: str
    of: Callable[[BurstFacts], float | None]
    unit: str = "ms"
    better: Better = "lower"


_PAUSE = Measure("longest pause", "the longest pause was", lambda facts: facts.worst.ms if facts.worst else None)
_FIRST = Measure("first tokens", "first tokens came after", lambda facts: facts.ttft_p50)
_LAST = Measure("last answers begin", "the last answers began after", lambda facts: facts.ttft_p95)
_GAP = Measure("time per token", "a token took", lambda facts: facts.own_gap_ms)
_READER = Measure("readers' usual wait", "readers usually waited", lambda facts: facts.reader_gap_ms)
_AGAIN = Measure("tokens computed again", "tokens computed again were", lambda facts: facts.recomputed, "tokens")
_COMPUTED = Measure(
    "prompt tokens computed",
    "prompt tokens computed were",
    lambda facts: facts.prompt_tokens - facts.saved_tokens,
    "tokens",
)
_RATE = Measure("throughput", "throughput was", lambda facts: facts.tokens_per_s, "tok/s", "higher")
_USUAL = (_PAUSE, _FIRST, _RATE)
# What each of these settings is for comes first.
_FOR: Mapping[str, tuple[Measure, ...]] = {
    "max_batch_size": (_LAST, _GAP),
    "preemption_mode": (_AGAIN, _LAST),
    "prefill_interval": (_READER, _FIRST),
    "prefix_cache": (_FIRST, _COMPUTED),
    "same_step_sharing": (_FIRST, _COMPUTED),
    "speculative_tokens": (_GAP,),
}


@dataclass(frozen=True)
class Compared:
    """A measure of two bursts."""

    measure: Measure
    difference: Difference
    slow: str

    @property
    def texts(self) -> tuple[str, str]:
        """Its values, before and after."""
        return _amount(self.difference.a or 0.0), _amount(self.difference.b or 0.0)

    @property
    def unit(self) -> str:
        return f"ms{self.slow}" if self.measure.unit == "ms" else self.measure.unit


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


def compared(before: BurstFacts, after: BurstFacts) -> list[Compared]:
    """Returns how two comparable bursts differ in what the settings that differ are for, at most ``_FIGURES`` of it."""
    measures: dict[Measure, None] = {}
    for name in changed_settings(before.knobs, after.knobs):
        measures |= dict.fromkeys(_FOR.get(name, ()))
    rows = []
    for measure in [*measures, *(one for one in _USUAL if one not in measures), _GAP]:
        values = measure.of(before), measure.of(after)
        if any(values) and None not in values and measure not in [row.measure for row in rows]:
            slow = slowed_text(after.factors) if measure.unit == "ms" else ""
            rows.append(Compared(measure, difference(values[:1], values[1:], better=measure.better), slow))
    return rows[:_FIGURES]


def before_and_after(before: BurstFacts, after: BurstFacts) -> Caption:
    """Returns how the later of two comparable bursts did with its settings, instead of the earlier one."""
    rows = compared(before, after)
    clear = [row for row in rows if row.difference.clear]
    figures = named_change(after.knobs, before.knobs)
    if not clear:
        return caption(_BEFORE_AND_AFTER, {**figures, "nothing": "no"})
    effect, *others = clear
    figures |= {"effect": effect.measure.words, **_values(effect, ""), "slow": effect.slow}
    unclear = next((row.measure for row in rows if row not in clear and row.measure is not _RATE), None)
    if others:
        words = {"price": "The price: ", "gain": "In return: "}.get(_mark(others[0], effect), "")
        said = words + others[0].measure.words
        figures |= {"other": said[0].upper() + said[1:], **_values(others[0], "other_"), "other_slow": others[0].slow}
    elif unclear is not None:
        figures["unclear"] = unclear.title.capitalize()
    return caption(_BEFORE_AND_AFTER, figures)


def _values(row: Compared, name: str) -> dict[str, str]:
    unit = f" {row.measure.unit}" if row.measure.unit != "tokens" else ""
    return {f"{name}{when}": f"{text}{unit}" for when, text in zip(("before", "after"), row.texts, strict=True)}


def _mark(row: Compared, effect: Compared | None) -> Mark:
    """Returns what a figure is beside the effect, which is the first one that differs clearly."""
    if not row.difference.clear or effect is None:
        return "same"
    if row is effect or row.difference.verdict == effect.difference.verdict:
        return "effect" if row is effect else ""
    return "price" if row.difference.verdict == "worse" else "gain"


def burst_pair(before: BurstFacts, after: BurstFacts) -> Pair:
    """Returns the picture of two comparable bursts that have been answered."""
    names = changed_settings(before.knobs, after.knobs)
    reach = _AFTER * max(one.done - one.arrived for one in (before, after)) + _AFTER_MS
    same = "the same " if after.seed is not None and after.seed == before.seed else ""
    readers = f"{many(after.streaming, 'reader')}, darker until the prompts had their first tokens"
    rows = compared(before, after)
    effect = next((row for row in rows if row.difference.clear), None)
    return {
        "sentence": for_page(before_and_after(before, after)),
        "about": f"{same}{many(after.prompts, 'prompt')}, {LABELS.get(after.kind or '', after.kind)}",
        "shows": readers if after.streaming else "answers of the burst",
        "longest": "readers' longest pause",
        "moment": "burst",
        "unit": f"ms{slowed_text(after.factors)}",
        "sides": [_side(one, names, reach) for one in (before, after)],
        "figures": [_figure(row, _mark(row, effect)) for row in rows],
    }


def _side(facts: BurstFacts, names: Sequence[str], reach: float) -> Side:
    worst = facts.worst and (facts.worst.t - facts.arrived, facts.worst.ms)
    named = title(_KNOBS, {name: facts.knobs.get(name) for name in names})
    gaps, around = ([gap for gap in some if gap[0] <= reach] for some in (facts.gaps, facts.gaps_around))
    return side(named, gaps, worst, facts.ttft, around)


def _figure(row: Compared, mark: Mark) -> PairFigure:
    return figure(row.measure.title, *row.texts, row.unit, mark)


def _amount(value: float) -> str:
    return whole(value) if value >= _WHOLE else number_text(value)
