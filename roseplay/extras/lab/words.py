"""Findings, figures and values of results in words: what the page, reports and the terminal say of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import singledispatch
from itertools import starmap

from roseplay.config import Knobs
from roseplay.extras.lab.findings import comparison, search, sweep
from roseplay.extras.lab.findings.finding import CpuTime, Finding, Level, Row, Saturated, Simulation
from roseplay.extras.lab.findings.regret import Doubt, Regret
from roseplay.extras.lab.points import LEAST_REPEATS, RATE, TRAFFIC
from roseplay.extras.lab.types import FindingEntry, Plain, PointRow, Summary, Value
from roseplay.extras.simulation.evidence import SATURATED
from roseplay.formats.numbers import amount_text, common_unit, number_text, percent_text, range_text, ratio_text
from roseplay.formats.segments import BOLD, VALUE, Segments, plain, sentence
from roseplay.formats.text import listed
from roseplay.settings import settings_of
from roseplay.traffic.difference import Verdict, spread_text
from roseplay.traffic.pair import named_value
from roseplay.traffic.run_figures import FIGURES

# Verdicts on B in tables.
VERDICTS: Mapping[Verdict, str] = {"better": "better", "worse": "worse", "within": "within the spread", "unknown": "–"}
_MOST_LISTED = 3  # values where A and B cross


def entry(finding: Finding) -> FindingEntry:
    """Returns a finding as a summary has it: its kind, its fields, and its words."""
    words = sentence([f"{finding.arm}: ", BOLD] if finding.arm else "", *words_of(finding))
    fields = json.loads(json.dumps(asdict(finding)))  # tuples become lists, as in a result from a file
    return {"kind": type(finding).__name__, **fields, "words": words}


def sentences(summary: Summary) -> list[str]:
    """Returns the words of a summary's findings without emphasis."""
    return [plain(finding["words"]) for finding in summary["findings"]]


@singledispatch
def words_of(finding: Finding) -> Segments:
    raise NotImplementedError(f"{type(finding).__name__} has no words")


# -- a comparison


@words_of.register
def _effect(finding: comparison.Effect) -> Segments:
    under = _settings(finding.settings)
    end = (f", {under}" if under else "") + "." + " One run each: repeat it to see the spread." * finding.once
    if finding.row is None:
        assert finding.watched is not None
        return sentence(["No clear effect", BOLD], f": {facts(finding.watched, inside=True)}{end}")
    if finding.watched is not None:
        return sentence(f"{facts(finding.watched)}, but {facts(finding.row, inside=True)}{end}")
    return sentence(f"{facts(finding.row)}{end}")


def _settings(settings: Plain) -> str:
    named = [f"{label.lower()} {text}" for label, text in starmap(named_value, settings.items())]
    return f"with {listed(named)}" if named else ""


@words_of.register
def _price(finding: comparison.Price) -> Segments:
    parts = [] if finding.named is None else [_named_price(finding.named, finding.wanted)]
    parts += map(brief, finding.always)
    if finding.from_arrival is not None:
        parts.append(facts(finding.from_arrival, inside=True))
    if finding.largest is not None:
        parts.append(f"also {finding.wanted} in B: {brief(finding.largest)}")
    opening = "In return" if finding.wanted == "better" else "The price"
    return sentence([opening, BOLD], f": {'; '.join(parts) or 'no figure of it could be measured'}.")


def _named_price(row: Row, wanted: str) -> str:
    if row.clear and row.verdict != wanted:
        return f"{_title(row, inside=True)} was expected to be {wanted} in B but is {row.verdict}: {_values(row)}"
    return facts(row, inside=True)


@words_of.register
def _work(finding: comparison.Work) -> Segments:
    opening, rest = {
        "tokens": ("The same work", ": every run gave the same tokens"),
        "nearly": (
            "Nearly the same work",
            ": some answers differ, since tokens that are nearly tied may fall either way",
        ),
        "requests": ("The same work", ": the same requests, with equally long answers"),
        "servers": ("The same requests", ", on other servers"),
    }[finding.same]
    rows = (facts(row, inside=True) if row.clear else brief(row) for row in finding.rows)
    return sentence([opening, BOLD], "; ".join([rest, *rows]) + ".")


@words_of.register
def _wide_spread(finding: comparison.WideSpread) -> Segments:
    title = FIGURES[finding.figure].title
    if finding.repeats < LEAST_REPEATS:
        return sentence(f"The spread of {title} is not known: that needs {LEAST_REPEATS} repeats.")
    return sentence(f"The spread of {title} was still {percent_text(finding.pct)} after {finding.repeats} repeats.")


# -- a sweep


@words_of.register
def _crossing(finding: sweep.Crossing) -> Segments:
    title, sides = FIGURES[finding.figure].title, finding.sides
    if all(verdict == "unknown" for verdict in finding.verdicts):
        return sentence(f"{title} could not be measured in both.")
    ends = f"{number_text(finding.values[0])} to {value_text(finding.setting, finding.values[-1])}"
    unclear = _unclear(finding.repeats, exact=finding.exact)
    if not sides:
        return sentence([title, BOLD], f": no crossing, A and B are {unclear} at every value from {ends}.")
    elsewhere = all(verdict in ("better", "worse") for verdict in finding.verdicts)
    rest = "" if elsewhere else f"; elsewhere, {unclear}"
    side_words = ", ".join(_side(finding, *side) for side in sides)
    if len(sides) == 1:
        return sentence([title, BOLD], f": no crossing from {ends}; B is {side_words}{rest}.")
    pairs = " and ".join(f"between {number_text(low)} and {number_text(high)}" for low, high in finding.between)
    unit = f" {TRAFFIC[finding.setting]}" if finding.setting in TRAFFIC else ""
    times = "" if len(sides) == 2 else f" {len(sides) - 1} times"
    return sentence([title, BOLD], f": A and B cross{times} {pairs}{unit}; B is {side_words}{rest}.")


def _side(finding: sweep.Crossing, verdict: str, places: Sequence[int]) -> str:
    """Returns where B is better or worse, and by how much, as in ``worse at 64 and 128 (×0.81 to ×0.92)``."""
    ratios = sorted(ratio for place in places if (ratio := finding.ratios[place]) is not None)
    ends = dict.fromkeys(map(ratio_text, (ratios[0], ratios[-1]) if ratios else ()))
    size = f" ({' to '.join(ends)})" if ends else ""
    if len(places) == len(finding.values):
        return f"{verdict} at every value{size}"
    values = [number_text(finding.values[place]) for place in places]
    if len(values) <= _MOST_LISTED:
        return f"{verdict} at {listed(values)}{size}"
    whole = places[-1] - places[0] + 1 == len(places)
    return f"{verdict} {'' if whole else f'at {len(places)} values '}from {values[0]} to {values[-1]}{size}"


@words_of.register
def _knee(finding: sweep.Knee) -> Segments:
    noun = "rate" if finding.setting == RATE else "length"
    first, last = (value_text(finding.setting, value) for value in (finding.first, finding.last))
    levels, broken = (" and ".join(map(limited_text, levels)) for levels in (finding.levels, finding.broken))
    if finding.knee is not None:
        value, beyond = (value_text(finding.setting, value) for value in (finding.knee, finding.beyond))
        rest = f": every {noun} up to it keeps both limits; there, {levels}. At {beyond}, {broken}."
        words = sentence(["The knee is at ", BOLD], [value, VALUE], rest)
    elif finding.beyond is None:
        words = sentence([f"No knee up to {last}", BOLD], f": every {noun} keeps both limits; at {last}, {levels}.")
    else:
        lowest = "lowest rate" if noun == "rate" else "shortest length"
        words = sentence(
            [f"No knee from {first} to {last}", BOLD], f": the {lowest} exceeds a limit already, {broken}."
        )
    if not finding.keeping:
        return words
    unit = TRAFFIC[finding.setting]
    keep, exceed = (f"{listed(map(number_text, at))} {unit}" for at in (finding.keeping, finding.breaking))
    return sentence(*words, f" The {noun}s disagree: both limits are kept at {keep}, but not at {exceed}.")


@words_of.register
def _bend(finding: sweep.Bend) -> Segments:
    last, title = value_text(finding.setting, finding.last), FIGURES[finding.end.figure].title
    end = f"{level_text(finding.end)} at {last}"
    if finding.level is None:
        return sentence([f"No knee up to {last}", BOLD], f": {title} is {end}.")
    value = value_text(finding.setting, finding.knee)
    return sentence(
        ["The knee is at ", BOLD], [value, VALUE], f": {title} is {level_text(finding.level)} there, {end}."
    )


@words_of.register
def _peak(finding: sweep.Peak) -> Segments:
    first, value, last = (value_text(finding.setting, at) for at in (finding.first, finding.value, finding.last))
    goodput = level_text(finding.level)
    if not finding.level.high:
        return sentence(f"No request stays within the limits from {first} to {last}.")
    if finding.count == 1:
        return sentence(f"Goodput is {goodput} at {value}.")
    same = _unclear(finding.repeats, exact=finding.exact and finding.repeats == 1)
    if len(finding.ties) == finding.count - 1:
        return sentence(f"Goodput is {goodput} at {value}; every other value is {same}.")
    if finding.clear:
        return sentence(["Goodput peaks at ", BOLD], [value, VALUE], f": {goodput}.")
    end = ", an end of the range" if finding.at_end and not finding.ties else ""
    ties, dips = (
        ", ".join(value_text(finding.setting, value) for value in values) for values in (finding.ties, finding.dips)
    )
    rest = f"; {ties}: {same}" if ties else ""
    rest += f"; it has a dip at {dips}" if dips else ""
    return sentence(["Goodput is highest at ", BOLD], [value, VALUE], f"{end}: {goodput}{rest}.")


@words_of.register
def _ends(finding: sweep.Ends) -> Segments:
    first, last = (value_text(finding.setting, value) for value in (finding.first, finding.last))
    return sentence([f"From {first} to {last}", BOLD], f": {changes(finding.rows)}.")


@words_of.register
def _falling(finding: sweep.Falling) -> Segments:
    values = (finding.low, finding.high)
    at = (
        f"{level_text(level)} at {value_text(RATE, value)}" for level, value in zip(finding.levels, values, strict=True)
    )
    title = FIGURES[finding.levels[0].figure].title
    return sentence(f"{title} does not rise with the rate throughout: it is {' and '.join(at)}.")


@words_of.register
def _prompt_lengths(finding: sweep.PromptLengths) -> Segments:
    off = ", ".join(f"{number_text(round(mean))} at {number_text(value)}" for value, mean in finding.off)
    return sentence(f"Prompts consist of whole texts, so their mean lengths differ: {off}.")


@words_of.register
def _wide_values(finding: sweep.WideValues) -> Segments:
    values = (f"{value_text(finding.setting, value)} ({percent_text(pct)})" for value, pct, _ in finding.values)
    runs = runs_text(count for _, _, count in finding.values)
    return sentence(
        f"The spread of {FIGURES[finding.figure].title} was still wide after {runs} at {', '.join(values)}."
    )


# -- a search


@words_of.register
def _unfinished(finding: search.Unfinished) -> Segments:
    low, high = plain_value(finding.low), plain_value(finding.high)
    left = f"{low} is left" if low == high else f"{low} to {high} are left"
    return sentence(["No answer yet", BOLD], f": {left}.")


@words_of.register
def _answer(finding: search.Answer) -> Segments:
    label = settings_of(Knobs)[finding.setting].label
    if finding.value is None:
        reason = " is needed: both limits are kept without one."
        return sentence([f"No {label.lower()}", VALUE], reason)
    price = f", at a price many times its gain ({changes(finding.price)})" if finding.price else ""
    end = f" is the largest that keeps both limits{price}."
    return sentence([f"{label} ", BOLD], [plain_value(finding.value), VALUE], end)


@words_of.register
def _no_answer(finding: search.NoAnswer) -> Segments:
    values = f"{plain_value(finding.low)} to {plain_value(finding.high)}"
    closest = f"{value_text(finding.setting, finding.closest)} comes closest, but {_miss(finding)}"
    return sentence([f"No value from {values} keeps both limits", BOLD], f": {closest}.")


@words_of.register
def _limited(finding: search.Limited) -> Segments:
    levels = " and ".join(map(limited_text, finding.levels))
    return sentence(f"{levels}." if finding.is_answer else f"There, {levels}.")


@words_of.register
def _regret(finding: Regret) -> Segments:
    figure, measured = FIGURES[finding.figure], finding.label is None
    title, least = in_sentence(figure.title), "lower" if figure.better == "lower" else "higher"
    if finding.unknown is not None:
        reasons = {
            "one_run": "each has one run, which shows no spread",
            "saturated": f"this one is {SATURATED}",
            "unbounded": "the error of the simulation is not bounded",
            "not_simulated": "they were not simulated with other durations",
        }
        return sentence(
            [f"Whether {title} is {least} at another value", BOLD], f": not known, as {reasons[finding.unknown]}."
        )
    label = "" if measured else f"; {finding.label}"
    if not finding.pct:
        despite = (
            "whatever the spread of its runs"
            if measured
            else f"even if durations are {_off(finding)} shorter or longer"
        )
        return sentence(["The best of the values tried", BOLD], f": none has a {least} {title}, {despite}{label}.")
    case = "within the spread of the runs" if measured else _case(finding)
    keeps = f"{value_text(finding.setting, finding.against)} {'may keep' if measured else 'keeps'} both limits too"
    best, worst = (amount_text(value, figure.unit) for value in (finding.best, finding.worst))
    worse = f"{percent_text(finding.pct)} {'higher' if figure.better == 'lower' else 'lower'}"
    return sentence(
        ["Another value may be better", BOLD],
        f": {case}, {keeps}, and {title} is up to {worse} here, {worst} instead of {best}{label}.",
    )


@words_of.register
def _doubt(finding: Doubt) -> Segments:
    instead = (
        f"{value_text(finding.setting, finding.instead)} keeps both limits then"
        if finding.any_keeps
        else "then no value tried keeps both limits"
    )
    return sentence(f"But {_case(finding)}, {_miss(finding)}; {instead}.")


def _case(finding: Regret | Doubt) -> str:
    return "as simulated" if finding.case == "runs" else f"if durations are {_off(finding)} {finding.case}"


def _off(finding: Regret | Doubt) -> str:
    return percent_text(finding.error_pct)


@words_of.register
def _disagreement(finding: search.Disagreement) -> Segments:
    named = [value_text(finding.setting, value) for value, _ in finding.values]
    if finding.of == "another":
        return sentence(f"Another search may find another value: the runs of {' and of '.join(named)} do not agree.")
    runs = [" and ".join(_within(*figure) for figure in figures) for _, figures in finding.values]
    if finding.of == "answer":
        return sentence(["Not in every run", BOLD], f": {runs[0]}.")
    values = "; ".join(f"at {value}, {within}" for value, within in zip(named, runs, strict=True))
    return sentence(["Not sure", BOLD], f": {values}, so another search may find one.")


def _within(figure: str, within: int, runs: int) -> str:
    return f"{FIGURES[figure].title} is within its limit in {within} of {runs} runs"


@words_of.register
def _beyond(finding: search.Beyond) -> Segments:
    if not finding.tried:
        return sentence("Nothing larger was tried.")
    return sentence(f"At {value_text(finding.setting, finding.value)}, {_miss(finding)}.")


def _miss(finding: search.NoAnswer | search.Beyond | Doubt) -> str:
    return f"{FIGURES[finding.figure].title} is {percent_text(finding.miss_pct)} above its limit"


@words_of.register
def _search_price(finding: search.SearchPrice) -> Segments:
    value, against = (value_text(finding.setting, each) for each in (finding.value, finding.against))
    costs = f"{changes(finding.costs)}. In return: {changes(finding.gains)}."
    return sentence([f"The price of {value}", BOLD], f", against {against}: {costs}")


@words_of.register
def _holds_for(finding: search.HoldsFor) -> Segments:
    runs = f", medians of {runs_text(finding.runs)}" if finding.runs else ""
    traffic = f"{finding.title}, {finding.requests} requests, seed {finding.seed}"
    under = _settings(finding.settings)
    return sentence(f"This holds{under and f' {under},'} for {traffic}, {finding.model} on {finding.device}{runs}.")


# -- how times were measured


@words_of.register
def _cpu_time(_: CpuTime) -> Segments:
    return sentence("Times are CPU time of the engine's process, on one core, which other programs hardly change.")


@words_of.register
def _simulation(finding: Simulation) -> Segments:
    evidence = dict.fromkeys(finding.evidence.values())
    named = (f"{arm}: {text}" for arm, text in finding.evidence.items())
    repeat = "" if finding.repeated else " A repeat would give the same figures."
    hardware = "; ".join(evidence if len(evidence) == 1 else named)
    return sentence(["Simulated", BOLD], f": {hardware}.{repeat}")


@words_of.register
def _saturated(finding: Saturated) -> Segments:
    where = [f"in {arm}" for arm in finding.arms]
    if finding.setting is not None:
        where += [f"at {value_text(finding.setting, value)}" for value in finding.values]
    return sentence(
        [SATURATED.capitalize(), BOLD],
        f": {listed(where)}, requests arrive faster than they are answered. These figures depend on the length of the run"
        " and have no error bound.",
    )


# -- figures and values


def facts(row: Row, *, inside: bool = False) -> str:
    """Returns a clause such as ``ITL p99 is 14.0 ms in B and 94.2 ms in A (×0.15)``; ``inside`` a sentence."""
    title = _title(row, inside=inside)
    if row.verdict == "unknown":
        return f"{title} could not be measured"
    unclear = "too little to count" if row.exact else f"within {spread_text(row.repeats)}"
    within = "" if row.clear else f", {unclear}"
    return f"{title} {'is' if row.unit else 'are'} {_values(row)}{within}"


def _values(row: Row) -> str:
    b, a = (amount_text(value, row.unit) for value in (row.b, row.a))
    return f"{b} in B and {a} in A" + (f" ({ratio_text(row.ratio)})" if row.ratio is not None else "")


def brief(row: Row) -> str:
    """Returns a clause such as ``TTFT p99 ×1.31``, with a note if the difference is not clear."""
    title = _title(row, inside=True)
    if row.verdict == "unknown":
        return f"{title} could not be measured"
    ratio = f" {ratio_text(row.ratio)}" if row.ratio is not None else f" {_values(row)}"
    within = verdict_words(row) if row.repeats > 1 or row.exact else "too close for one run each"
    return f"{title}{ratio}" + ("" if row.clear else f" ({within})")


def changes(rows: Sequence[Row]) -> str:
    """Returns figures relative to others, as in ``TTFT p95 ×2.4, ITL p99 ×1.1 (within the spread)``."""
    return ", ".join(map(brief, rows)) or "nothing that could be measured"


def verdict_words(row: Row) -> str:
    return "about the same" if row.exact and row.verdict == "within" else VERDICTS[row.verdict]


def _unclear(repeats: int, *, exact: bool) -> str:
    return "about the same" if exact else f"within {spread_text(repeats)}"


def _title(row: Row, *, inside: bool) -> str:
    """Returns the name of a row's figure, at the beginning of a sentence or ``inside`` it, where a gap is a pause."""
    title = "Worst pause" if row.name == "itl_max_ms" else row.title
    return in_sentence(title) if inside else title


def in_sentence(title: str) -> str:
    """Returns a title as written within a sentence; acronyms such as TTFT keep their case."""
    return title[0].lower() + title[1:] if title[1].islower() else title


def level_text(level: Level) -> str:
    """Returns median and range of a figure, as in ``180 ms (170–191)``, and its limit, as in ``180 ms (limit 250 ms)``."""
    unit, (median, low, high) = common_unit(FIGURES[level.figure].unit, level.median, level.low, level.high)
    limit = "" if level.limit is None else f"limit {amount_text(level.limit, FIGURES[level.figure].unit)}"
    more = ", ".join(filter(None, (range_text(low, high), limit)))
    return f"{number_text(median)} {unit}" + (f" ({more})" if more else "")


def limited_text(level: Level) -> str:
    """Returns a figure with its limit, as in ``TTFT p95 is 180 ms (170–191, limit 250 ms)``."""
    return f"{FIGURES[level.figure].title} is {level_text(level)}"


def value_text(setting: str, value: Value) -> str:
    """Returns a value's name in sentences, such as ``6 requests/s`` or ``prefill budget 64``."""
    if setting in TRAFFIC:
        return f"{number_text(value)} {TRAFFIC[setting]}"
    label = settings_of(Knobs)[setting].label.lower()
    return f"an unlimited {label}" if value is None else f"{label} {plain_value(value)}"


def plain_value(value: Value) -> str:
    """Returns a value as text, without the setting's name and unit."""
    return "unlimited" if value is None else number_text(value)


def runs_text(counts: Iterable[int]) -> str:
    """Returns numbers of runs in words, as in ``3 to 9 runs``."""
    distinct = sorted({*counts})
    ends = " to ".join(map(str, dict.fromkeys((distinct[0], distinct[-1]))))
    return ends + (" run" if distinct == [1] else " runs")


def kept_text(row: PointRow) -> str:
    """Returns the verdict on a value for a table, as in ``kept, not sure``; a sweep's values count as sure."""
    return ("kept" if row["kept"] else "exceeded") + ("" if row.get("sure", True) else ", not sure")
