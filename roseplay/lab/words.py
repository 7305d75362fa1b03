"""Findings, figures and values of results in words. Nothing else in the lab makes sentences of a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import singledispatch
from typing import Any

from roseplay.config import Knobs
from roseplay.formats.numbers import number_text, range_text, ratio_text
from roseplay.formats.segments import BOLD, VALUE, Segments, plain, sentence
from roseplay.formats.text import listed
from roseplay.lab.document import Value
from roseplay.lab.findings.comparison import Effect, Price, WideSpread, Work
from roseplay.lab.findings.crossing import Crossing
from roseplay.lab.findings.finding import CpuTime, Finding, Level, Row, Saturated, Simulation
from roseplay.lab.findings.regret import Doubt, Regret
from roseplay.lab.findings.search import (
    Answer,
    Beyond,
    Disagreement,
    HoldsFor,
    NoAnswer,
    Promised,
    SearchPrice,
    Unfinished,
)
from roseplay.lab.findings.sweep import Bend, Ends, Falling, Knee, Peak, PromptLengths, WideValues
from roseplay.lab.points import LEAST_REPEATS, RATE, TRAFFIC, PointResult
from roseplay.settings import settings_of
from roseplay.sim.evidence import SATURATED, TTFT_UNDER_LOAD
from roseplay.traffic.difference import Verdict, spread_text
from roseplay.traffic.run_figures import FIGURES

# Verdicts on B in tables.
VERDICTS: Mapping[Verdict, str] = {"better": "better", "worse": "worse", "within": "within the spread", "unknown": "–"}
_MOST_LISTED = 3  # values where A and B cross


def entry(finding: Finding) -> dict[str, Any]:
    """Returns a finding as a summary has it: its kind, its fields, and its words."""
    words = sentence([f"{finding.arm}: ", BOLD] if finding.arm else "", *words_of(finding))
    return {"kind": type(finding).__name__, **asdict(finding), "words": words}


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """Returns the words of a summary's findings without emphasis."""
    return [plain(finding["words"]) for finding in summary["findings"]]


@singledispatch
def words_of(finding: Finding) -> Segments:
    """Returns a finding in words."""
    raise NotImplementedError(f"{type(finding).__name__} has no words")


# -- a comparison


@words_of.register
def _effect(found: Effect) -> Segments:
    once = " One run each: repeat it to see the spread." if found.once else ""
    if found.row is None:
        assert found.watched is not None
        return sentence(["No clear effect", BOLD], f": {facts(found.watched, inside=True)}.{once}")
    if found.watched is not None:
        return sentence(f"{facts(found.watched)}, but {facts(found.row, inside=True)}.{once}")
    return sentence(f"{facts(found.row)}.{once}")


@words_of.register
def _price(found: Price) -> Segments:
    parts = [] if found.promised is None else [_promised_price(found.promised, found.wanted)]
    parts += map(brief, found.always)
    if found.from_arrival is not None:
        parts.append(facts(found.from_arrival, inside=True))
    if found.largest is not None:
        parts.append(f"also {found.wanted} in B: {brief(found.largest)}")
    opening = "In return" if found.wanted == "better" else "The price"
    return sentence([opening, BOLD], f": {'; '.join(parts) or 'no figure of it could be measured'}.")


def _promised_price(row: Row, wanted: str) -> str:
    if row.clear and row.verdict != wanted:
        return f"{in_sentence(row.title)} was expected to be {wanted} in B but is {row.verdict}: {_values(row)}"
    return facts(row, inside=True)


@words_of.register
def _work(found: Work) -> Segments:
    opening, rest = {
        "tokens": ("The same work", ": every run gave the same tokens"),
        "nearly": (
            "Nearly the same work",
            ": some answers differ, since tokens that are nearly tied may fall either way",
        ),
        "requests": ("The same work", ": the same requests, with equally long answers"),
        "servers": ("The same requests", ", on other servers"),
    }[found.same]
    rows = (facts(row, inside=True) if row.clear else brief(row) for row in found.rows)
    return sentence([opening, BOLD], "; ".join([rest, *rows]) + ".")


@words_of.register
def _wide_spread(found: WideSpread) -> Segments:
    title = FIGURES[found.figure].title
    if found.repeats < LEAST_REPEATS:
        return sentence(f"The spread of {title} is not known: that needs {LEAST_REPEATS} repeats.")
    return sentence(f"The spread of {title} was still {number_text(found.pct)} % after {found.repeats} repeats.")


# -- a sweep


@words_of.register
def _crossing(found: Crossing) -> Segments:
    title, sides = FIGURES[found.figure].title, found.sides
    if all(verdict == "unknown" for verdict in found.verdicts):
        return sentence(f"{title} could not be measured in both.")
    ends = f"{number_text(found.values[0])} to {value_text(found.setting, found.values[-1])}"
    unclear = _unclear(found.repeats, exact=found.exact)
    if not sides:
        return sentence([title, BOLD], f": no crossing, A and B are {unclear} at every value from {ends}.")
    elsewhere = all(verdict in ("better", "worse") for verdict in found.verdicts)
    rest = "" if elsewhere else f"; elsewhere, {unclear}"
    side_words = ", ".join(_side(found, *side) for side in sides)
    if len(sides) == 1:
        return sentence([title, BOLD], f": no crossing from {ends}; B is {side_words}{rest}.")
    pairs = " and ".join(f"between {number_text(low)} and {number_text(high)}" for low, high in found.between)
    unit = f" {TRAFFIC[found.setting]}" if found.setting in TRAFFIC else ""
    times = "" if len(sides) == 2 else f" {len(sides) - 1} times"
    return sentence([title, BOLD], f": A and B cross{times} {pairs}{unit}; B is {side_words}{rest}.")


def _side(found: Crossing, verdict: str, places: Sequence[int]) -> str:
    """Returns where B is better or worse, and by how much, as in ``worse at 64 and 128 (0.81× to 0.92×)``."""
    ratios = sorted(ratio for place in places if (ratio := found.ratios[place]) is not None)
    ends = dict.fromkeys(map(ratio_text, (ratios[0], ratios[-1]) if ratios else ()))
    size = f" ({' to '.join(ends)})" if ends else ""
    if len(places) == len(found.values):
        return f"{verdict} at every value{size}"
    values = [number_text(found.values[place]) for place in places]
    if len(values) <= _MOST_LISTED:
        return f"{verdict} at {listed(values)}{size}"
    whole = places[-1] - places[0] + 1 == len(places)
    return f"{verdict} {'' if whole else f'at {len(places)} values '}from {values[0]} to {values[-1]}{size}"


@words_of.register
def _knee(found: Knee) -> Segments:
    noun = "rate" if found.setting == RATE else "length"
    first, last = (value_text(found.setting, value) for value in (found.first, found.last))
    levels, broken = (" and ".join(map(promise_text, levels)) for levels in (found.levels, found.broken))
    words: Segments
    if found.knee is not None:
        value = value_text(found.setting, found.knee)
        beyond = f"at {value_text(found.setting, found.beyond)}, {broken}"
        words = [["The knee is at ", BOLD], [value, VALUE]]
        words += [[f": every {noun} up to it keeps the promise, {levels} there; {beyond}.", ""]]
    elif found.beyond is None:
        words = [[f"No knee up to {last}", BOLD], [f": every {noun} keeps the promise, {levels} at {last}.", ""]]
    else:
        lowest = "lowest rate" if noun == "rate" else "shortest length"
        words = [[f"No knee from {first} to {last}", BOLD], [f": the {lowest} breaks the promise, {broken}.", ""]]
    if not found.keeping:
        return words
    one_keeps, one_breaks = (noun == "rate" and len(values) == 1 for values in (found.keeping, found.breaking))
    keep = f"{_listed(found, found.keeping)} {'keeps' if one_keeps else 'keep'} the promise"
    others = f"{_listed(found, found.breaking)} {'does' if one_breaks else 'do'} not"
    return sentence(*words, f" The {noun}s disagree: {keep}, but {others}.")


def _listed(found: Knee, values: Iterable[float]) -> str:
    """Returns rates or lengths as a list such as ``57.1, 72.9 and 88.6 req/s``."""
    return f"{listed(map(number_text, values))} {TRAFFIC[found.setting]}"


@words_of.register
def _bend(found: Bend) -> Segments:
    last, title = value_text(found.setting, found.last), FIGURES[found.end.figure].title
    end = f"{level_text(found.end)} at {last}"
    if found.level is None:
        return sentence([f"No knee up to {last}", BOLD], f": {title} is {end}.")
    value = value_text(found.setting, found.knee)
    return sentence(["The knee is at ", BOLD], [value, VALUE], f": {title} is {level_text(found.level)} there, {end}.")


@words_of.register
def _peak(found: Peak) -> Segments:
    first, value, last = (value_text(found.setting, of) for of in (found.first, found.value, found.last))
    goodput = level_text(found.level)
    if not found.level.high:
        return sentence(f"No request stays within the limits from {first} to {last}.")
    if found.count == 1:
        return sentence(f"Goodput is {goodput} at {value}.")
    same = _unclear(found.repeats, exact=found.exact and found.repeats == 1)
    if len(found.ties) == found.count - 1:
        return sentence(f"Goodput is {goodput} at {value}; every other value is {same}.")
    if found.clear:
        return sentence(["Goodput peaks at ", BOLD], [value, VALUE], f": {goodput}.")
    end = ", an end of the range" if found.at_end and not found.ties else ""
    ties, dips = (", ".join(value_text(found.setting, of) for of in values) for values in (found.ties, found.dips))
    rest = f"; {ties}: {same}" if ties else ""
    rest += f"; it has a dip at {dips}" if dips else ""
    return sentence(["Goodput is highest at ", BOLD], [value, VALUE], f"{end}: {goodput}{rest}.")


@words_of.register
def _ends(found: Ends) -> Segments:
    first, last = (value_text(found.setting, value) for value in (found.first, found.last))
    return sentence([f"From {first} to {last}", BOLD], f": {changes(found.rows)}.")


@words_of.register
def _falling(found: Falling) -> Segments:
    values = (found.low, found.high)
    at = (f"{level_text(level)} at {value_text(RATE, of)}" for level, of in zip(found.levels, values, strict=True))
    title = FIGURES[found.levels[0].figure].title
    return sentence(f"{title} does not rise with the rate throughout: it is {' and '.join(at)}.")


@words_of.register
def _prompt_lengths(found: PromptLengths) -> Segments:
    off = ", ".join(f"{number_text(round(mean))} at {number_text(value)}" for value, mean in found.off)
    return sentence(f"Prompts consist of whole texts, so their mean lengths differ: {off}.")


@words_of.register
def _wide_values(found: WideValues) -> Segments:
    values = (f"{value_text(found.setting, value)} ({number_text(pct)} %)" for value, pct, _ in found.values)
    runs = runs_text(count for _, _, count in found.values)
    return sentence(f"The spread of {FIGURES[found.figure].title} was still wide after {runs} at {', '.join(values)}.")


# -- a search


@words_of.register
def _unfinished(found: Unfinished) -> Segments:
    low, high = plain_value(found.low), plain_value(found.high)
    left = f"{low} is left" if low == high else f"{low} to {high} are left"
    return sentence(["No answer yet", BOLD], f": {left}.")


@words_of.register
def _answer(found: Answer) -> Segments:
    label = settings_of(Knobs)[found.setting].label
    if found.value is None:
        reason = " is needed, as both promises are kept without one."
        return sentence([f"No {label.lower()}", VALUE], reason)
    price = f", at a price many times its gain ({changes(found.price)})" if found.price else ""
    end = f" is the largest that keeps both promises{price}."
    return sentence([f"{label} ", BOLD], [plain_value(found.value), VALUE], end)


@words_of.register
def _no_answer(found: NoAnswer) -> Segments:
    values = f"{plain_value(found.low)} to {plain_value(found.high)}"
    closest = f"{value_text(found.setting, found.closest)} comes closest but misses {_miss(found)}"
    return sentence([f"No value from {values} keeps both", BOLD], f": {closest}.")


@words_of.register
def _promised(found: Promised) -> Segments:
    levels = ", ".join(map(promise_text, found.levels))
    return sentence(f"{levels}." if found.is_answer else f"There, {levels}.")


@words_of.register
def _regret(found: Regret) -> Segments:
    opening, title = ["Regret", BOLD], in_sentence(FIGURES[found.figure].title)
    if found.unknown is not None:
        reasons = {
            "one_run": "from one run a value, which shows no spread",
            "saturated": f"because this value is {SATURATED}",
            "unbounded": "because the error of the simulation is not bounded",
            "not_simulated": "because the values were not simulated with other durations",
        }
        return sentence(opening, f": not known{'' if found.unknown == 'one_run' else ','} {reasons[found.unknown]}.")
    measured, share = found.label is None, f"{number_text(found.pct)} % of {title}"
    label = "" if measured else f"; {found.label}"
    if not found.pct:
        runs = (
            "within the spread of their runs" if measured else f"with durations up to {_off(found)} shorter or longer"
        )
        return sentence(opening, f": {share} among the values tried, {runs}{label}.")
    case = "within the spread of their runs" if measured else _case(found)
    keeps = f"{value_text(found.setting, found.against)} {'may keep' if measured else 'keeps'} both promises too"
    ends = f"{title} {number_text(found.best)} against {number_text(found.worst)} {FIGURES[found.figure].unit}"
    return sentence(opening, f": at most {share}: {case}, {keeps}, with {ends}{label}.")


@words_of.register
def _doubt(found: Doubt) -> Segments:
    instead = (
        f"{value_text(found.setting, found.instead)} keeps both" if found.any_keeps else "no value tried keeps both"
    )
    return sentence(f"But {_case(found)}, it misses {_miss(found)}; {instead}.")


def _case(found: Regret | Doubt) -> str:
    return "as simulated" if found.case == "runs" else f"with durations {_off(found)} {found.case}"


def _off(found: Regret | Doubt) -> str:
    return f"{found.error_pct:g} %"


@words_of.register
def _disagreement(found: Disagreement) -> Segments:
    named = [value_text(found.setting, value) for value, _ in found.values]
    if found.of == "another":
        return sentence(f"Another search may find another value: the runs of {' and of '.join(named)} do not agree.")
    runs = [" and ".join(_within(*figure) for figure in figures) for _, figures in found.values]
    if found.of == "answer":
        return sentence(["Not in every run", BOLD], f": {runs[0]}.")
    values = "; ".join(f"at {value}, {of}" for value, of in zip(named, runs, strict=True))
    return sentence(["Not sure", BOLD], f": {values}, so another search may find one.")


def _within(figure: str, within: int, runs: int) -> str:
    return f"{FIGURES[figure].title} is within its limit in {within} of {runs} runs"


@words_of.register
def _beyond(found: Beyond) -> Segments:
    if not found.tried:
        return sentence("Nothing larger was tried.")
    return sentence(f"{value_text(found.setting, found.value).capitalize()} misses {_miss(found)}.")


def _miss(found: NoAnswer | Beyond | Doubt) -> str:
    return f"{FIGURES[found.figure].title} by {number_text(found.miss_pct)} %"


@words_of.register
def _search_price(found: SearchPrice) -> Segments:
    value, against = (value_text(found.setting, of) for of in (found.value, found.against))
    costs = f"{changes(found.costs)}. In return: {changes(found.gains)}."
    return sentence([f"The price of {value}", BOLD], f", against {against}: {costs}")


@words_of.register
def _holds_for(found: HoldsFor) -> Segments:
    runs = f", medians of {runs_text(found.runs)}" if found.runs else ""
    traffic = f"{found.title}, {found.requests} requests, seed {found.seed}"
    return sentence(f"This holds for {traffic}, {found.model} on {found.device}{runs}.")


# -- how times were measured


@words_of.register
def _cpu_time(_: CpuTime) -> Segments:
    return sentence(
        "Times are CPU time of the engine's process, on one core: what other programs do meanwhile hardly counts."
    )


@words_of.register
def _simulation(found: Simulation) -> Segments:
    evidence = dict.fromkeys(found.evidence.values())
    named = (f"{arm}: {text}" for arm, text in found.evidence.items())
    repeat = "" if found.repeated else " A repeat would give the same figures."
    hardware = "; ".join(evidence if len(evidence) == 1 else named)
    return sentence(["Simulated", BOLD], f": {hardware}. {TTFT_UNDER_LOAD}.{repeat}")


@words_of.register
def _saturated(found: Saturated) -> Segments:
    where = [f"in {arm}" for arm in found.arms]
    if found.setting is not None:
        where += [f"at {value_text(found.setting, value)}" for value in found.values]
    return sentence(
        [SATURATED.capitalize(), BOLD],
        f": {listed(where)}, requests arrive faster than they are answered. These figures depend on the length of the run"
        " and have no error bound.",
    )


# -- figures and values


def facts(row: Row, *, inside: bool = False) -> str:
    """Returns a clause such as ``ITL p99 is 14.0 ms in B and 94.2 ms in A (0.15×)``; ``inside`` a sentence."""
    title = in_sentence(row.title) if inside else row.title
    if row.verdict == "unknown":
        return f"{title} could not be measured"
    unclear = "too little to count" if row.exact else f"within {spread_text(row.repeats)}"
    within = "" if row.clear else f", {unclear}"
    return f"{title} {'is' if row.unit else 'are'} {_values(row)}{within}"


def _values(row: Row) -> str:
    b, a = (f"{number_text(value)} {row.unit}".strip() for value in (row.b, row.a))
    return f"{b} in B and {a} in A" + (f" ({ratio_text(row.ratio)})" if row.ratio is not None else "")


def brief(row: Row) -> str:
    """Returns a clause such as ``TTFT p99 1.31×``, with a note if the difference is not clear."""
    title = in_sentence(row.title)
    if row.verdict == "unknown":
        return f"{title} could not be measured"
    ratio = f" {ratio_text(row.ratio)}" if row.ratio is not None else f" {_values(row)}"
    within = verdict_words(row) if row.repeats > 1 or row.exact else "too close for one run each"
    return f"{title}{ratio}" + ("" if row.clear else f" ({within})")


def changes(rows: Sequence[Row]) -> str:
    """Returns figures relative to others, as in ``TTFT p95 2.4×, ITL p99 1.1× (within the spread)``."""
    return ", ".join(map(brief, rows)) or "nothing that could be measured"


def verdict_words(row: Row) -> str:
    """Returns the verdict on B in words, for tables."""
    return "about the same" if row.exact and row.verdict == "within" else VERDICTS[row.verdict]


def _unclear(repeats: int, *, exact: bool) -> str:
    return "about the same" if exact else f"within {spread_text(repeats)}"


def in_sentence(title: str) -> str:
    """Returns a title as written within a sentence; acronyms such as TTFT keep their case."""
    return title[0].lower() + title[1:] if title[1].islower() else title


def level_text(level: Level) -> str:
    """Returns median and range of a figure, as in ``180 ms (170–191)``."""
    span = range_text(level.low, level.high)
    return f"{number_text(level.median)} {FIGURES[level.figure].unit}" + (f" ({span})" if span else "")


def promise_text(level: Level) -> str:
    """Returns a figure with its limit, as in ``TTFT p95 is 180 ms (170–191) of 250``."""
    return f"{FIGURES[level.figure].title} is {level_text(level)} of {number_text(level.limit)}"


def value_text(setting: str, value: Value) -> str:
    """Returns a value's name in sentences, such as ``6 req/s`` or ``prefill budget 64``."""
    if setting in TRAFFIC:
        return f"{number_text(value)} {TRAFFIC[setting]}"
    label = settings_of(Knobs)[setting].label.lower()
    return f"no {label}" if value is None else f"{label} {plain_value(value)}"


def plain_value(value: Value) -> str:
    """Returns a value as text, without the setting's name and unit."""
    return "unlimited" if value is None else number_text(value)


def runs_text(counts: Iterable[int]) -> str:
    """Returns numbers of runs in words, as in ``3 to 9 runs``."""
    distinct = sorted({*counts})
    ends = " to ".join(map(str, dict.fromkeys((distinct[0], distinct[-1]))))
    return ends + (" run" if distinct == [1] else " runs")


def point_runs_text(points: Iterable[PointResult]) -> str:
    """Returns the points' numbers of runs in words."""
    return runs_text(len(point["runs"]) for point in points)


def kept_text(row: Mapping[str, Any]) -> str:
    """Returns the verdict on a value for a table, as in ``kept, not sure``; a sweep's values count as sure."""
    return ("kept" if row["kept"] else "broken") + ("" if row.get("sure", True) else ", not sure")
