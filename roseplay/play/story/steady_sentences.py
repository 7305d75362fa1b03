"""The two lines about steady traffic: how it is answered, and how that was before a setting was changed."""

from __future__ import annotations

from roseplay.formats.numbers import slowed_text, whole
from roseplay.play.story.steady_facts import SteadyFacts
from roseplay.play.story.text import Segments, knob_text, segments
from roseplay.traffic.difference import Difference, difference

_SIMILAR_RATE = 1.25


def how_it_goes(facts: SteadyFacts) -> Segments:
    """Returns how the traffic was answered."""
    worst = "" if facts.worst_ms is None else f", worst pause **{whole(facts.worst_ms)} ms**"
    return segments(
        f"**{facts.rate:.2g} requests/s** for {whole(facts.seconds)} s: {whole(facts.done)} answered{worst}, first token "
        f"p95 **{whole(facts.ttft_p95)} ms**{_slowed(facts)}."
    )


def compared(facts: SteadyFacts | None, before: SteadyFacts | None) -> Segments:
    """Returns how it was answered with the previous settings, over an equal time; empty if that cannot be compared."""
    if facts is None or before is None or not _similar(facts.rate, before.rate):
        return []
    differing = [name for name, value in before.knobs.items() if facts.knobs.get(name) != value]
    if len(differing) != 1 or differing == ["slow_motion"]:
        return []
    opening = f"Before, with {knob_text(differing[0], before.knobs[differing[0]])}:"
    pause = difference(*_one_each(before.worst_ms, facts.worst_ms), better="lower")
    first = difference([before.ttft_p95], [facts.ttft_p95], better="lower")
    if not pause.clear and not first.clear:
        return segments(f"{opening} no clear difference.")
    parts = [_part("worst pause", before.worst_ms, pause), _part("first token p95", before.ttft_p95, first)]
    return segments(f"{opening} {', '.join(part for part in parts if part)}{_slowed(facts)}.")


def _slowed(facts: SteadyFacts) -> str:
    return slowed_text([facts.knobs.get("slow_motion", 1)])  # a change of a setting begins another stretch


def _part(words: str, value: float | None, verdict: Difference) -> str:
    if value is None or verdict.verdict == "unknown":
        return ""
    return f"{words} **{whole(value)} ms**" if verdict.clear else f"no clear difference in {words}"


def _similar(a: float, b: float) -> bool:
    return min(a, b) * _SIMILAR_RATE >= max(a, b)


def _one_each(a: float | None, b: float | None) -> tuple[list[float], list[float]]:
    return ([] if a is None else [a], [] if b is None else [b])
