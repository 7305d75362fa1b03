"""What findings consist of, and those of every kind of result: how its times were measured or simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import dataclass_transform

from roseplay.config import Knobs
from roseplay.extras.lab.document import ArmSettings, Result
from roseplay.extras.lab.points import arms_of, is_exact, spread, values_of
from roseplay.extras.lab.types import ArmName, FigureName, MeasuredPoint, Plain, Value, Varied
from roseplay.traffic.difference import Verdict, difference
from roseplay.traffic.run_figures import FIGURES, Figure

_NAMED = ("max_batch_size", "prefill_max_tokens")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class Finding:
    """A conclusion, of JSON values or lists and dataclasses of such: each class derived from this is a frozen dataclass.

    ``arm`` is whose it is, if each arm has its own.
    """

    arm: str = field(default="", kw_only=True)

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


@dataclass(frozen=True, slots=True)
class Level:
    """A figure at one value: median and range over the repeats, ``None`` if it could not be measured, and its limit."""

    figure: FigureName
    median: float | None
    low: float | None
    high: float | None
    limit: float | None = None

    @classmethod
    def of(cls, point: MeasuredPoint, figure: FigureName, limit: float | None = None) -> Level:
        values = spread(point, figure)
        low, high = values["range"]
        return cls(figure, values["median"], low, high, limit)


@dataclass(frozen=True, slots=True)
class Row(Figure):
    """How a figure differs between A and B, or between two values: a ``traffic.difference``, rounded.

    ``exact`` says whether repeats would give the same figures.
    """

    a: float | None
    b: float | None
    a_range: list[float | None]
    b_range: list[float | None]
    ratio: float | None
    verdict: Verdict
    repeats: int
    exact: bool

    @classmethod
    def of(cls, name: str, a: Sequence[float | None], b: Sequence[float | None], *, exact: bool = False) -> Row:
        """Returns the row of a figure from its values in the repeats; for ``exact`` see ``difference``."""
        figure = FIGURES[name]
        compared = difference(a, b, better=figure.better, exact=exact)
        return cls(
            **asdict(figure),
            a=_rounded(compared.a),
            b=_rounded(compared.b),
            a_range=[_rounded(end) for end in compared.a_range or (None, None)],
            b_range=[_rounded(end) for end in compared.b_range or (None, None)],
            ratio=_rounded(compared.ratio),
            verdict=compared.verdict,
            repeats=compared.repeats,
            exact=exact and compared.repeats == 1,
        )

    @property
    def clear(self) -> bool:
        """Whether B is better or worse."""
        return self.verdict in ("better", "worse")

    @property
    def distance(self) -> float:
        """How far apart A and B are, as a logarithm."""
        return abs(math.log(self.ratio)) if self.ratio else math.inf


def rows_between(before: MeasuredPoint, after: MeasuredPoint, names: Sequence[FigureName]) -> list[Row]:
    """Returns how figures differ between two points; those without a ratio are left out."""
    exact = is_exact(before["runs"]) and is_exact(after["runs"])
    rows = [Row.of(name, values_of(before, name), values_of(after, name), exact=exact) for name in names]
    return [row for row in rows if row.ratio is not None]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def conditions(*arms: ArmSettings, but: str = "") -> Plain:
    """Returns the knobs, ``but`` one, under which a conclusion holds: those that most depend on, and others that differ
    from their defaults; of several arms, those with one value."""
    knobs, default = arms[0]["knobs"], Knobs().to_dict()
    shared = [name for name in default if name in knobs and all(arm["knobs"].get(name) == knobs[name] for arm in arms)]
    return {name: knobs[name] for name in shared if name != but and (name in _NAMED or knobs[name] != default[name])}


class CpuTime(Finding):
    """Times are CPU time of the engine's process."""


class Simulation(Finding):
    """The hardware was simulated: by arm, the evidence for its durations; and whether there were repeats."""

    evidence: dict[ArmName, str]
    repeated: bool


class Saturated(Finding):
    """Simulated runs in which requests arrived faster than they were answered: those of arms, or at values."""

    arms: list[ArmName]
    setting: Varied | None
    values: list[Value]


def how_measured(document: Result, arms: Sequence[ArmName] = (), values: Sequence[Value] = ()) -> Sequence[Finding]:
    """Returns the findings with which every result of simulated arms, or in CPU time, ends; none for other results.

    Args:
        arms, values: those with saturated runs.
    """
    if document.get("cpu_time"):
        return [CpuTime()]
    simulated = {name: arm["simulated"]["evidence"] for name, arm in arms_of(document).items() if "simulated" in arm}
    if not simulated:
        return []
    findings: list[Finding] = [Simulation(simulated, document["repeats"] > 1)]
    if arms or values:
        setting = None if document["kind"] == "compare" else document["setting"]
        findings.append(Saturated([*arms], setting, [*values]))
    return findings


def is_once(document: Result) -> bool:
    """Whether each arm or value was simulated once, as a repeat would give the same figures."""
    return document["repeats"] == 1 and "simulated" in document["arms"]["A"]
