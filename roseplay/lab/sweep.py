"""A sweep: one setting from a to b in n steps under the same traffic, each value measured on the same engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
    value_text,
    values_of,
    with_rate,
)
from roseplay.lab.progress import RunProgress
from roseplay.lab.spec import MAX_REPEATS, parse_length
from roseplay.lab.spread import is_small
from roseplay.lab.sweep_summary import latency_of, sweep_summary
from roseplay.traffic.scenario import MAX_RATE_PER_S, checked_number

VERSION = 1
MAX_POINTS = 32
MAX_SECONDS = 60.0
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


def parse_sweep(body: Mapping[str, Any]) -> Sweep:
    """Parse a sweep as a page or a program sends it.

    ``sweep`` is ``{"setting": "rate_per_s", "from": 1, "to": 12, "points": 12, "seconds": 5}``; the setting may also be
    ``prefill_max_tokens`` or ``max_batch_size``. Rates are evenly spaced, the others by equal factors. ``seconds`` is
    how long requests arrive at each value; without it, the scenario's number of requests is sent. The other fields
    are those of ``points.parse_question``.

    Raises:
        ValueError: one sentence for the sender.
    """
    question = parse_question(body, "sweep")
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
    """Runs a sweep; see ``PointJob``. Values that are measured when it is stopped or fails are kept."""

    kind = "sweep"

    def __init__(self, sweep: Sweep, live: Any, keep: Callable[[dict[str, Any]], str], **how: Any) -> None:
        super().__init__(sweep.setting, sweep.question, sweep.questions, live, keep, **how)
        self._seconds = sweep.seconds
        for value, (_, workload, _) in self._loads.items():
            label = value_text(sweep.setting, value)
            self._runs += [RunProgress(label, n + 1, len(workload)) for n in range(self._question.repeats)]

    def _measure(self) -> None:
        engine = self._open()
        self.state = "running"
        most = 0 if self._question.max_spread_pct is None else MAX_REPEATS

        def enough(point: Point) -> bool:
            return is_small(values_of(point, latency_of(self.setting)), self._question.max_spread_pct or 0)

        try:
            for value in self._loads:
                self._points.append(self._measure_value(engine, value, most=most, enough=enough))
                self._tell()
        finally:
            if self._points:
                self.result = self._keep(self._document())

    def _document(self) -> dict[str, Any]:
        document = {
            "roseplay_sweep": VERSION,
            **self._common(),
            **({} if self._seconds is None else {"seconds": self._seconds}),
            "asked": list(self._loads),
            "points": list(self._points),
        }
        return {**document, "summary": sweep_summary(document)}
