"""An experiment: points, each with settings and traffic, measured in rounds under the same conditions. A comparison is one."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from roseplay.config import EngineConfig, Knobs
from roseplay.extras.lab.document import MAX_REPEATS, ComparisonResult, Header, Result, Run
from roseplay.extras.lab.findings.comparison import watched_values
from roseplay.extras.lab.load import Load
from roseplay.extras.lab.points import TRAFFIC, is_small
from roseplay.extras.lab.types import ARMS, ArmName, Kind, Limits, MeasuredPoint, RunFigures, Value, Varied
from roseplay.extras.lab.words import value_text
from roseplay.settings import settings_of
from roseplay.traffic.scenario import SIDES

SIDE = dict(zip(ARMS, SIDES, strict=True))
MAX_OUTPUT_TOKENS = 200_000  # in all runs together: the result has a number for each

# The other settings belong to the server, or would change what the experiment measures.
ARM_CONFIG = tuple(name for name, setting in settings_of(EngineConfig).items() if setting.compared)


@dataclass(frozen=True, slots=True)
class Arm:
    """The settings of an engine: all knobs, and the ``EngineConfig`` fields that it sets or its server's ``url``."""

    knobs: Knobs
    config: Mapping[str, Any]


@dataclass(slots=True, eq=False, kw_only=True)
class Point:
    """Settings under which traffic is measured, and the runs so far."""

    label: str  # its name in the progress, such as ``A`` or ``6 requests/s``
    arm: ArmName  # the one on whose engine it is measured
    knobs: Knobs
    load: Load
    value: Value = None  # of the varied setting; ``None`` means no limit
    durations: float = 1.0  # factor of all steps' durations, for a simulated arm
    runs: list[RunFigures] = field(default_factory=list)
    whole_runs: list[Run] = field(default_factory=list)  # in a comparison, in place of their figures

    def about(self, *, varied: bool) -> dict[str, Value | str]:
        """Returns its arm and, if a setting is varied, its value and the ``case`` of a simulation: shorter or longer steps."""
        case = "" if self.durations == 1 else "longer" if self.durations > 1 else "shorter"
        return {"arm": self.arm, **({"value": self.value, "case": case} if varied else {})}

    def document(self) -> MeasuredPoint:
        """Returns it as a result has it."""
        return {"value": self.value, "requests": self.load.scenario.num_requests, "runs": list(self.runs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Load, ABC):
    """A checked experiment: a comparison, a sweep or a search.

    Attributes:
        kind: ``compare``, ``sweep`` or ``find``.
        varied: the setting that is varied; ``None`` if arms are compared.
        max_spread_pct: repeat until the spread of a figure is at most this.
        exact: whether every repeat would give the same figures, as of simulated arms; then each point is measured once.
        error: by what share the durations of simulated arms may be off, see ``simulation.evidence.Evidence.bound``.
        rounds: number of initial rounds over all points.
    """

    kind: ClassVar[Kind]
    varied: Varied | None = None
    arms: Mapping[ArmName, Arm]
    repeats: int
    limits: Limits
    name: str | None = None
    max_spread_pct: float | None = None
    exact: bool = False
    error: float | None = None

    def simulated(self, error: float | None) -> Self:
        """Returns the same experiment on simulated arms: without repeats, which would all be equal."""
        return dataclasses.replace(self, exact=True, error=error, repeats=1, max_spread_pct=None)

    @property
    def rounds(self) -> int:
        return self.repeats

    def point_at(self, setting: Varied, value: Value, load: Load, arm: ArmName = "A") -> Point:
        label, knobs = value_text(setting, value), self.arms[arm].knobs
        if len(self.arms) > 1:
            label = f"{arm}, {label}"
        if setting not in TRAFFIC:
            knobs = knobs.changed({setting: value})
        return Point(label=label, arm=arm, knobs=knobs, load=load, value=value)

    @abstractmethod
    def points(self) -> list[Point]:
        """Returns all points that may be measured, without runs."""

    @abstractmethod
    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        """Returns the points of the next round; none at the end."""

    @abstractmethod
    def result(self, header: Header, points: Sequence[Point]) -> Result | None:
        """Returns the result with the fields that only this kind has; ``None`` while there is nothing to keep."""


def in_turn(points: Sequence[Point], number: int) -> Sequence[Point]:
    """Returns the order of round ``number``: forward if even, else backward, so that drift affects all alike."""
    return points if number % 2 == 0 else points[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Experiment):
    """Two arms under the same traffic."""

    kind: ClassVar[Kind] = "compare"

    @property
    def most_repeats(self) -> int:
        if self.max_spread_pct is None:
            return self.repeats
        fit = MAX_OUTPUT_TOKENS // (len(ARMS) * self.answer_tokens)
        return max(self.repeats, min(MAX_REPEATS, fit))

    def points(self) -> list[Point]:
        return [Point(label=name, arm=name, knobs=arm.knobs, load=self) for name, arm in self.arms.items()]

    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        """Returns both arms while the spread is larger than requested."""
        most, runs = self.max_spread_pct, [run for point in points for run in point.whole_runs]
        if most is None or len(points[0].whole_runs) >= self.most_repeats:
            return []
        watched = watched_values(runs, self.scenario.watch, self.limits)
        return [] if all(is_small(values, most) for values in watched.values()) else points

    def result(self, header: Header, points: Sequence[Point]) -> ComparisonResult | None:
        """Returns the repeats that both arms have completed."""
        repeats = min(len(point.whole_runs) for point in points)
        runs = [point.whole_runs[number] for number in range(repeats) for point in in_turn(points, number)]
        if not runs:
            return None
        order, look = [run["arm"] for run in runs], list(self.scenario.look)
        return {**header, "kind": "compare", "look": look, "repeats": repeats, "order": order, "runs": runs}
