"""A sweep: one setting from a to b in n steps under the same traffic, measured in rounds over all values on one engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from roseplay.lab.knee import contradicting
from roseplay.lab.own_traffic import checked_object
from roseplay.lab.points import (
    KNOBS,
    MAX_VALUE,
    RATE,
    Point,
    PointJob,
    Question,
    Value,
    Varied,
    parse_question,
    values_of,
    with_rate,
)
from roseplay.lab.progress import RunProgress
from roseplay.lab.spec import MAX_REPEATS, parse_length
from roseplay.lab.spread import is_small
from roseplay.lab.sweep_summary import latency_of, sweep_summary
from roseplay.traffic.pace import Speed
from roseplay.traffic.scenario import MAX_RATE_PER_S, checked_number

VERSION = 1
MAX_POINTS = 32
MAX_SECONDS = 60.0
MOST_RUNS = 2  # times the repeats are the most runs of a rate that contradicts another
_FIELDS = ("setting", "from", "to", "points", "seconds")


@dataclass(frozen=True, slots=True)
class Sweep:
    """A checked sweep.

    Attributes:
        question: as it was asked, before its traffic is given a rate.
        questions: what is measured at each value, in rising order.
        seconds: how long requests arrive at each value; ``None``: until all are sent.
    """

    setting: Varied
    question: Question
    questions: Mapping[Value, Question]
    seconds: float | None


def parse_sweep(body: Mapping[str, Any], speed: Speed | None = None) -> Sweep:
    """Parse a sweep as a page or a program sends it.

    ``sweep`` is ``{"setting": "rate_per_s", "from": 1, "to": 12, "points": 12, "seconds": 5}``; the setting may also be
    ``prefill_max_tokens`` or ``max_batch_size``. Rates are evenly spaced, the others by equal factors. ``seconds`` is
    how long requests arrive at each value; without it, the scenario's number of requests is sent. The other fields
    are those of ``points.parse_question``.

    Args:
        speed: of the engine, see ``spec.parse_load``.

    Raises:
        ValueError: one sentence for the sender.
    """
    question = parse_question(body, "sweep", speed)
    given = checked_object(body["sweep"], "a sweep", _FIELDS)
    setting = given.get("setting")
    if setting not in (RATE, *KNOBS):
        raise ValueError(f"a sweep cannot vary {setting!r}: use {', '.join((RATE, *KNOBS))}")
    low, high = (0.1, MAX_RATE_PER_S) if setting == RATE else (1, MAX_VALUE)
    whole = setting != RATE
    first, last = (checked_number(name, given.get(name), low, high, whole=whole) for name in ("from", "to"))
    if first >= last:
        raise ValueError(f"a sweep from {first:g} to {last:g} has no values: let it rise")
    count = int(checked_number("points", 8 if given.get("points") is None else given["points"], 2, MAX_POINTS))
    seconds = given.get("seconds")
    if seconds is not None:
        seconds = checked_number("seconds", seconds, 0.5, MAX_SECONDS, whole=False)
        if question.traffic is not None:
            raise ValueError("seconds is for a scenario: traffic of your own is sent as a whole")
        if parse_length(body.get("length")) != 1:
            raise ValueError("seconds says how long requests arrive: leave out length")
    values = spaced(first, last, count, whole=whole)
    questions = _questions(question, setting, values, seconds)
    return Sweep(setting, question, questions, seconds)


def spaced(first: float, last: float, count: int, *, whole: bool) -> list[float]:
    """Returns values from first to last: evenly spaced; or whole numbers by equal factors, each once."""
    if whole:
        return sorted({round(first * (last / first) ** (step / (count - 1))) for step in range(count)})
    return [round(first + (last - first) * step / (count - 1), 4) for step in range(count)]


def _questions(
    question: Question, setting: Varied, values: list[float], seconds: float | None
) -> dict[Value, Question]:
    if setting == RATE:
        return {value: with_rate(question, value, seconds) for value in values}
    if seconds is not None:
        rate = question.scenario.rate_per_s
        if rate is None:
            raise ValueError(f"{question.scenario.title} sends all requests at once: leave out seconds")
        question = with_rate(question, rate, seconds)
    return dict.fromkeys(values, question)


class SweepJob(PointJob):
    """Runs a sweep; see ``PointJob``. Runs that are measured when it is stopped or fails are kept.

    It measures in rounds over all values, rising and falling in turn, so that a minute in which the machine is slow falls
    on all of them. After them, values are measured again whose spread is larger than asked for, and rates that contradict
    each other, see ``knee.contradicting``: these up to ``MOST_RUNS`` times the repeats.
    """

    kind = "sweep"

    def __init__(self, sweep: Sweep, live: Any, keep: Callable[[dict[str, Any]], str], **how: Any) -> None:
        super().__init__(sweep.setting, sweep.question, sweep.questions, live, keep, **how)
        self._seconds = sweep.seconds
        self._points = [self._new_point(value) for value in self._loads]
        self._rounds = [self._plan(number, self._points) for number in range(self._question.repeats)]

    def _plan(self, number: int, points: list[Point]) -> list[tuple[Point, RunProgress]]:
        """Plan a round, from 0 on, over some of the points."""
        in_turn = points if number % 2 == 0 else points[::-1]
        planned = [(point, self._progress_of(point["value"], number + 1)) for point in in_turn]
        self._runs += [run for _, run in planned]
        return planned

    def _measure(self) -> None:
        engine = self._open()
        self.state = "running"
        try:
            for number in itertools.count():
                if number == len(self._rounds):
                    self._rounds.append(self._plan(number, self._unclear()))
                if not self._rounds[number]:
                    break
                for point, run in self._rounds[number]:
                    self._measure_run(engine, point, run)
                    self._tell()
        finally:
            if any(point["runs"] for point in self._points):
                self.result = self._keep(self._document())

    def _unclear(self) -> list[Point]:
        """Returns the points that another round measures."""
        most_pct, latency = self._question.max_spread_pct, latency_of(self.setting)
        limits, most = self._question.limits, min(MAX_REPEATS, MOST_RUNS * self._question.repeats)
        places = contradicting(self._points, limits) if self.setting == RATE else set()

        def is_unclear(place: int, point: Point) -> bool:
            runs = len(point["runs"])
            wide = most_pct is not None and not is_small(values_of(point, latency), most_pct)
            return (wide and runs < MAX_REPEATS) or (place in places and runs < most)

        return [point for place, point in enumerate(self._points) if is_unclear(place, point)]

    def _document(self) -> dict[str, Any]:
        measured = [{**point, "runs": list(point["runs"])} for point in self._points if point["runs"]]
        document = {
            "roseplay_sweep": VERSION,
            **self._common(),
            **({} if self._seconds is None else {"seconds": self._seconds}),
            "asked": list(self._loads),
            "points": measured,
        }
        return {**document, "summary": sweep_summary(document)}
