"""An experiment: points, each with settings and traffic, which are measured in rounds under the same conditions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from roseplay.config import Knobs
from roseplay.lab.load import Load
from roseplay.lab.spec import (
    MAX_REPEATS,
    Arm,
    parse_arm,
    parse_limits,
    parse_load,
    parse_max_spread,
    parse_name,
    parse_seed,
)
from roseplay.traffic.pace import Speed
from roseplay.traffic.scenario import checked_number

Kind = Literal["compare", "sweep", "find"]
Varied = Literal["rate_per_s", "prefill_max_tokens", "max_batch_size"]
Value = float | None
Item = TypeVar("Item")

FIELDS = ("scenario", "traffic", "seed", "repeats", "params", "limits", "name", "a", "max_spread_pct", "length")


@dataclass(slots=True, eq=False, kw_only=True)
class Point:
    """Settings under which traffic is measured, and the runs so far.

    Attributes:
        label: as the progress names it, such as ``A`` or ``6 req/s``.
        title: as errors name it, such as ``arm A``.
        arm: on whose engine it is measured.
        value: of the setting that is varied; ``None`` is no limit.
        runs: as the result holds them.
    """

    label: str
    title: str
    arm: str
    knobs: Knobs
    load: Load
    value: Value = None
    runs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Load, ABC):
    """A checked experiment: a comparison, a sweep or a search.

    Attributes:
        kind: which of them.
        varied: the setting that is varied; ``None`` where arms are compared.
        max_spread_pct: repeat until the spread of a figure is at most this.
        rounds: how many rounds over all points it begins with.
    """

    kind: ClassVar[Kind]
    varied: Varied | None = None
    arms: Mapping[str, Arm]
    repeats: int
    limits: Mapping[str, float]
    name: str | None = None
    max_spread_pct: float | None = None

    @property
    def rounds(self) -> int:
        return self.repeats

    @abstractmethod
    def points(self) -> list[Point]:
        """Returns all points that may be measured, without runs."""

    @abstractmethod
    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        """Returns the points of another round, none at the end."""

    @abstractmethod
    def record(self, run: dict[str, Any]) -> dict[str, Any]:
        """Returns what the result holds of a run, from its ``measuring.run_record``."""

    @abstractmethod
    def result(self, points: Sequence[Point]) -> dict[str, Any] | None:
        """Returns the fields of the result that only this kind has, or ``None`` before there is something to keep."""


def in_turn(items: Sequence[Item], number: int) -> Sequence[Item]:
    """Returns the order of the round of this number, from 0 on: there and back, so that a drift meets all alike."""
    return items if number % 2 == 0 else items[::-1]


def parse_common(
    body: Mapping[str, Any], arms: Sequence[str], repeats: int, speed: Speed | None = None
) -> dict[str, Any]:
    """Returns the fields of ``Experiment`` from those that all kinds share.

    ``a`` and ``b`` are ``{"knobs": {…}, "config": {…}}``, applied to the defaults; an arm that is missing is the
    scenario's. ``traffic`` is described at ``lab.own_traffic.parse_own_traffic``; with it no scenario is needed.

    Args:
        repeats: by default.
        speed: of the engine, see ``spec.parse_load``.

    Raises:
        ValueError: one sentence for the sender.
    """
    seed = parse_seed(body.get("seed"))
    scenario, traffic = parse_load(body, seed, speed)
    given = repeats if body.get("repeats") is None else body["repeats"]
    return {
        "scenario": scenario,
        "traffic": traffic,
        "seed": seed,
        "arms": {arm: parse_arm(scenario, arm, body.get(arm.lower())) for arm in arms},
        "repeats": int(checked_number("repeats", given, 1, MAX_REPEATS)),
        "limits": parse_limits(body.get("limits")),
        "name": parse_name(body.get("name")),
        "max_spread_pct": parse_max_spread(body.get("max_spread_pct")),
    }
