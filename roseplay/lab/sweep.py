"""A sweep: one setting at several values, measured in rounds over all values, on the engine of A or on those of A and B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from roseplay.lab.experiment import FIELDS, Experiment, Kind, Point, Value, Varied, parse_common
from roseplay.lab.knee import contradicting
from roseplay.lab.load import Load
from roseplay.lab.own_traffic import checked_object
from roseplay.lab.points import KNOBS, MAX_VALUE, PROMPT, RATE, TRAFFIC, figures, of_point, point_at, values_of
from roseplay.lab.spec import ARMS, MAX_REPEATS, parse_length
from roseplay.lab.spread import is_small
from roseplay.lab.sweep_summary import latency_of
from roseplay.traffic.pace import Speed
from roseplay.traffic.scenario import MAX_RATE_PER_S, checked_number

MAX_POINTS = 32
MAX_SECONDS = 60.0
MOST_RUNS = 2  # a rate that contradicts another has at most this many times the repeats as runs
_FIELDS = ("setting", "from", "to", "points", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Experiment):
    """A checked sweep.

    It measures in rounds over all values, alternately rising and falling, each value in A and, if there is one, in B, so
    that a slow minute of the machine affects all of them. Afterwards it measures again the values whose spread is larger
    than requested and, up to ``MOST_RUNS`` times the repeats, rates that contradict each other (see
    ``knee.contradicting``).

    Attributes:
        values: in increasing order.
        seconds: how long requests arrive at each value; ``None`` means until all are sent.
    """

    kind: ClassVar[Kind] = "sweep"
    varied: Varied
    values: Sequence[float]
    seconds: float | None

    def loads(self) -> dict[Value, Load]:
        """Returns the traffic for each value; raises ``ValueError`` if the traffic cannot have such a rate."""
        if self.varied == RATE:
            return {value: self.at_rate(value, self.seconds) for value in self.values}
        load: Load = self
        if self.seconds is not None:
            if self.scenario.rate_per_s is None:
                raise ValueError(f"{self.scenario.title} sends all requests at once: leave out seconds")
            load = self.at_rate(self.scenario.rate_per_s, self.seconds)
        if self.varied == PROMPT:
            return {value: load.with_prompts_of(int(value)) for value in self.values}
        return dict.fromkeys(self.values, load)

    def points(self) -> list[Point]:
        loads = self.loads()
        return [point_at(self, self.varied, value, loads[value], arm) for value in loads for arm in self.arms]

    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        if self.exact:
            return []
        return [point for arm in self.arms for point in self._unclear([one for one in points if one.arm == arm])]

    def _unclear(self, points: Sequence[Point]) -> list[Point]:
        """Returns the points of an arm to measure again."""
        measured, latency = [of_point(point) for point in points], latency_of(self.varied)
        places = contradicting(measured, self.limits) if self.varied == RATE else set()

        def is_unclear(place: int) -> bool:
            runs = len(points[place].runs)
            most = self.max_spread_pct
            wide = most is not None and not is_small(values_of(measured[place], latency), most)
            return runs < MAX_REPEATS and (wide or (place in places and runs < MOST_RUNS * self.repeats))

        return [point for place, point in enumerate(points) if is_unclear(place)]

    def record(self, run: dict[str, Any]) -> dict[str, Any]:
        return figures(run, self.limits)

    def result(self, points: Sequence[Point]) -> dict[str, Any] | None:
        """Returns the values that have runs, once there is one for each arm."""
        measured = {arm: [of_point(point) for point in points if point.arm == arm and point.runs] for arm in self.arms}
        if not all(measured.values()):
            return None
        seconds = {} if self.seconds is None else {"seconds": self.seconds}
        of_b = {"b_points": measured["B"]} if "B" in measured else {}
        return {**seconds, "asked": list(self.values), "points": measured["A"], **of_b}


def parse_sweep(body: Mapping[str, Any], speed: Speed | None = None) -> Sweep:
    """Parse a sweep from a page or a program.

    ``sweep`` is ``{"setting": "rate_per_s", "from": 1, "to": 12, "points": 12, "seconds": 5}``; the setting may also be
    ``prompt_tokens``, the mean length of a scenario's prompts, ``prefill_max_tokens`` or ``max_batch_size``. Rates are
    evenly spaced, the others by equal factors. ``seconds`` is how long requests arrive at each value; without it, the
    scenario's number of requests is sent. The other fields are those of ``experiment.parse_common``; B is measured only
    if there is ``b``.

    Args:
        speed: of the engine, see ``spec.parse_load``.

    Raises:
        ValueError: the sweep is invalid; the message is one sentence for the sender.
    """
    body = checked_object(body, "a body with sweep", (*FIELDS, "b", "sweep"))
    common = parse_common(body, ARMS[: 1 if body.get("b") is None else 2], 3, speed)
    given = checked_object(body["sweep"], "a sweep", _FIELDS)
    setting = given.get("setting")
    if setting not in (*TRAFFIC, *KNOBS):
        raise ValueError(f"a sweep cannot vary {setting!r}: use {', '.join((*TRAFFIC, *KNOBS))}")
    if setting in KNOBS and len({getattr(arm.knobs, setting) for arm in common["arms"].values()}) > 1:
        raise ValueError(f"the sweep varies {setting} in both arms: leave it out of B")
    low, high = (0.1, MAX_RATE_PER_S) if setting == RATE else (1, MAX_VALUE)
    whole = setting != RATE
    first, last = (checked_number(name, given.get(name), low, high, whole=whole) for name in ("from", "to"))
    if first >= last:
        raise ValueError(f"a sweep from {first:g} to {last:g} has no values: the last must be larger than the first")
    count = int(checked_number("points", 8 if given.get("points") is None else given["points"], 2, MAX_POINTS))
    seconds = given.get("seconds")
    if seconds is not None:
        seconds = checked_number("seconds", seconds, 0.5, MAX_SECONDS, whole=False)
        if common["traffic"] is not None:
            raise ValueError("seconds is for a scenario: traffic of your own is sent as a whole")
        if parse_length(body.get("length")) != 1:
            raise ValueError("seconds says how long requests arrive: leave out length")
    values = spaced(first, last, count, whole=whole)
    sweep = Sweep(**common, varied=setting, values=values, seconds=seconds)
    sweep.loads()
    return sweep


def spaced(first: float, last: float, count: int, *, whole: bool) -> list[float]:
    """Returns values from first to last: evenly spaced or, if ``whole``, distinct integers spaced by equal factors."""
    if whole:
        return sorted({round(first * (last / first) ** (step / (count - 1))) for step in range(count)})
    return [round(first + (last - first) * step / (count - 1), 4) for step in range(count)]
