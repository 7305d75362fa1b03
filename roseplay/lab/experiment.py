"""An experiment: points, each with settings and traffic, measured in rounds under the same conditions."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeVar

from roseplay.config import Knobs
from roseplay.lab.load import Load
from roseplay.lab.own_traffic import parse_name
from roseplay.lab.spec import (
    MAX_REPEATS,
    Arm,
    parse_arm,
    parse_limits,
    parse_load,
    parse_seed,
)
from roseplay.traffic.pace import Speed
from roseplay.traffic.scenario import checked_number

Kind = Literal["compare", "sweep", "find"]
Varied = Literal["rate_per_s", "prompt_tokens", "prefill_max_tokens", "max_batch_size"]
Value = float | None
Item = TypeVar("Item")

FIELDS = ("scenario", "traffic", "seed", "repeats", "params", "limits", "name", "a", "max_spread_pct", "length")


@dataclass(slots=True, eq=False, kw_only=True)
class Point:
    """Settings under which traffic is measured, and the runs so far.

    Attributes:
        label: its name in the progress, such as ``A`` or ``6 req/s``.
        title: its name in errors, such as ``arm A``.
        arm: the arm on whose engine it is measured.
        value: of the varied setting; ``None`` means no limit.
        durations: factor of all steps' durations, for a simulated arm.
        runs: in the result's format.
    """

    label: str
    title: str
    arm: str
    knobs: Knobs
    load: Load
    value: Value = None
    durations: float = 1.0
    runs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Load, ABC):
    """A checked experiment: a comparison, a sweep or a search.

    Attributes:
        kind: ``compare``, ``sweep`` or ``find``.
        varied: the setting that is varied; ``None`` if arms are compared.
        max_spread_pct: repeat until the spread of a figure is at most this.
        exact: whether every repeat would give the same figures, as of simulated arms; then each point is measured once.
        error: by what share the durations of simulated arms may be off, see ``sim.evidence.Evidence.bound``.
        rounds: number of initial rounds over all points.
    """

    kind: ClassVar[Kind]
    varied: Varied | None = None
    arms: Mapping[str, Arm]
    repeats: int
    limits: Mapping[str, float]
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

    @abstractmethod
    def points(self) -> list[Point]:
        """Returns all points that may be measured, without runs."""

    @abstractmethod
    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        """Returns the points of the next round; none at the end."""

    @abstractmethod
    def record(self, run: dict[str, Any]) -> dict[str, Any]:
        """Returns the part of a run's ``measuring.run_record`` that the result keeps."""

    @abstractmethod
    def result(self, points: Sequence[Point]) -> dict[str, Any] | None:
        """Returns the result's fields that only this kind has; ``None`` while there is nothing to keep."""


def in_turn(items: Sequence[Item], number: int) -> Sequence[Item]:
    """Returns the order of round ``number``: forward if even, else backward, so that drift affects all alike."""
    return items if number % 2 == 0 else items[::-1]


def parse_common(
    body: Mapping[str, Any], arms: Sequence[str], repeats: int, speed: Speed | None = None
) -> dict[str, Any]:
    """Returns the fields of ``Experiment``, parsed from the fields that all kinds share.

    ``a`` and ``b`` are ``{"knobs": {…}, "config": {…}}``, applied to the defaults; a missing arm is the scenario's.
    For ``traffic``, see ``lab.own_traffic.parse_own_traffic``; with it no scenario is needed.

    Args:
        repeats: their default number.
        speed: of the engine, see ``spec.parse_load``.

    Raises:
        ValueError: a field is invalid; the message is one sentence for the sender.
    """
    seed = parse_seed(body.get("seed"))
    scenario, traffic = parse_load(body, seed, speed)
    most = body.get("max_spread_pct")
    given = repeats if body.get("repeats") is None else body["repeats"]
    return {
        "scenario": scenario,
        "traffic": traffic,
        "seed": seed,
        "arms": {arm: parse_arm(scenario, arm, body.get(arm.lower())) for arm in arms},
        "repeats": int(checked_number("repeats", given, 1, MAX_REPEATS)),
        "limits": parse_limits(body.get("limits")),
        "name": parse_name(body.get("name"), "the name") or None,
        "max_spread_pct": None if most is None else checked_number("max_spread_pct", most, 0.1, 100, whole=False),
    }
