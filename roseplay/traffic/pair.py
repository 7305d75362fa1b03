"""Two comparable runs as data for one drawing: their gaps on one clock, and what differs. The page and reports draw it
with ``static/shared/pair/picture.js``, and recordings keep it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from roseplay.config import SETTINGS
from roseplay.formats.json_schema import list_of, number, of_type, row, text, whole
from roseplay.formats.numbers import setting_text
from roseplay.formats.segments import VALUE, Segments

MOST_GAPS = 400  # of a side
_LONGEST = 100  # of these, kept whatever is left out
MOST_STEPS = 240  # of a side
MOST_READ = 400  # tokens of a side's reader
MOST_NAMED = 3  # settings in a title or sentence

Mark = Literal["", "effect", "price", "gain", "same"]

# As in JSON, where rows are lists.
_GAP = row({"t": number(), "ms": number(0)})
_Gap = Annotated[list[float], _GAP]
_Gaps = Annotated[list[list[float]], list_of(_GAP)]
_Steps = Annotated[list[list[float]], list_of(row({"t0": number(), "t1": number(), "tokens": whole(0)}))]
_Words = Annotated[str, text(200)]
_Figure = Annotated[str, text(40)]

Gap = Sequence[float]  # the time of its second token and its length, both in ms
Step = tuple[float, float, float]  # when it began and ended, in ms, and how many tokens it computed


class Side(TypedDict):
    """One run; times are in ms since the moment at which both are aligned.

    ``longest`` is the gap that is ringed, the longest of ``gaps`` or that of a figure of gaps; gaps ``around`` these are
    drawn paler, and ``firsts`` are times to first token, of which ``first`` is marked in place of a gap. Where they are known,
    ``steps`` are those that computed prompts, and ``reader`` the times at which the answer that paused longest got its tokens.
    """

    title: Segments
    gaps: _Gaps
    around: _Gaps
    firsts: Annotated[list[float], list_of(number(0))]
    longest: NotRequired[_Gap]
    steps: NotRequired[_Steps]
    reader: NotRequired[list[float]]
    first: NotRequired[Annotated[float, number(0)]]


class PairFigure(TypedDict):
    """A figure before and after; ``mark``: it is the effect, its price or a gain in return, or not clearly another."""

    title: _Figure
    before: _Figure
    after: _Figure
    unit: _Figure
    mark: Annotated[Mark, text(40)]


class Pair(TypedDict):
    """Two runs; ``about`` is what both were asked, ``shows`` whose gaps these are, ``longest`` what the marked one is
    called, ``moment`` the name of time 0, and ``boxes`` which steps are drawn if not those with prompts."""

    sentence: Segments
    about: _Words
    shows: _Words
    longest: _Words
    moment: _Words
    unit: _Words
    boxes: NotRequired[_Figure]
    sides: Annotated[list[Side], row(dict.fromkeys(("before", "after"), of_type(Side)))]
    figures: list[PairFigure]


def title(values: Mapping[str, Any]) -> Segments:
    """Returns the values of the settings that differ, with their labels."""
    parts: Segments = []
    for name, value in [*values.items()][:MOST_NAMED]:
        label, text = named_value(name, value)
        parts += [[f"{', ' if parts else ''}{label} ", ""], [text, VALUE]]
    left = len(values) - MOST_NAMED
    return [*parts, [f" and {left} more", ""]] if left > 0 else parts


def named_value(name: str, value: Any) -> tuple[str, str]:
    """Returns a setting's label and its value as text, as the page shows both; an unknown setting has only its name."""
    setting = SETTINGS.get(name)
    return (setting.label, setting_text(setting.label_of(value))) if setting else (name, setting_text(value))


def side(
    title: Segments,
    gaps: Iterable[Gap],
    longest: Gap | None,
    firsts: Iterable[float],
    around: Iterable[Gap] = (),
    steps: Sequence[Step] = (),
    reader: Sequence[float] = (),
    first: float | None = None,
) -> Side:
    """Returns a side with at most ``MOST_GAPS`` of these gaps, among them the longest ones, its ``MOST_STEPS`` longest steps,
    and the first ``MOST_READ`` tokens of its reader."""
    firsts = [round(ms, 1) for ms in sorted(firsts)]
    result: Side = {"title": title, "gaps": thinned(gaps), "around": thinned(around), "firsts": firsts}
    if steps:
        longest_steps = sorted(nlargest(MOST_STEPS, steps, key=lambda step: step[1] - step[0]))
        result["steps"] = [[round(t0, 1), round(t1, 1), tokens] for t0, t1, tokens in longest_steps]
    if first is not None:
        result["first"] = round(first, 0 if first >= 10 else 2)  # as it is told
    if reader:
        result["reader"] = [round(t) for t in reader[:MOST_READ]]
    if longest is not None:
        result["longest"] = [round(longest[0]), round(longest[1], 2)]  # as in the figures, to the ms
    return result


def thinned(gaps: Iterable[Gap]) -> list[list[float]]:
    """Returns gaps in the order of their times: one of those that look alike, at most ``MOST_GAPS``."""
    distinct = sorted({(round(t), round(ms, 1)) for t, ms in gaps})
    if len(distinct) <= MOST_GAPS:
        return [list(gap) for gap in distinct]
    by_length = sorted(distinct, key=lambda gap: gap[1])
    rest, longest = sorted(by_length[:-_LONGEST]), by_length[-_LONGEST:]
    stride = len(rest) / (MOST_GAPS - _LONGEST)
    sample = [rest[int(number * stride)] for number in range(MOST_GAPS - _LONGEST)]
    return [list(gap) for gap in sorted([*sample, *longest])]


def figure(title: str, before: Any, after: Any, unit: str, mark: Mark = "") -> PairFigure:
    return {"title": title, "before": before, "after": after, "unit": unit, "mark": mark}
