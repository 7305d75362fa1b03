"""What can be ordered of the lab, from a page, a program or a file, and the experiment that an order stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from roseplay.config import EngineConfig, Knobs
from roseplay.extras.lab.document import MAX_POINTS, MAX_REPEATS
from roseplay.extras.lab.experiment import ARM_CONFIG, MAX_OUTPUT_TOKENS, SIDE, Arm, Comparison, Experiment
from roseplay.extras.lab.find import Find, grid_between
from roseplay.extras.lab.points import KNOBS, RATE
from roseplay.extras.lab.sweep import Sweep, doubled, spaced
from roseplay.extras.lab.types import ARMS, ArmName, Limits, Varied
from roseplay.formats.invalid import Input, Number, Whole, between, unfit, validated
from roseplay.traffic.own import parse_rows, parse_traffic
from roseplay.traffic.own_traffic import MAX_NAME, OWN, OwnTraffic
from roseplay.traffic.pace import Speed
from roseplay.traffic.paced import paced
from roseplay.traffic.scenario import MAX_RATE_PER_S, Scenario
from roseplay.traffic.scenarios import SCENARIOS

LENGTHS = (1, 4, 10)  # factors for the number of requests
MAX_SEED = 2**31 - 1
MAX_VALUE = 1_000_000
MAX_SECONDS = 60.0
RANGES: Mapping[str, tuple[int, int]] = {"prefill_max_tokens": (16, 2048), "max_batch_size": (1, 64)}  # of a search


def _length(value: int) -> int:
    if value not in LENGTHS:
        raise unfit("1, 4 or 10")
    return value


Name = Annotated[str, Field(max_length=MAX_NAME)]
Ms = Annotated[Number, Field(gt=0, le=1e6)]


class LimitsOrder(Input):
    """The goodput limits in ms: a request's TTFT, and the p99 of its ITLs."""

    ttft_ms: Ms = 500.0
    itl_ms: Ms = 50.0

    def values(self) -> Limits:
        """Returns them as a result has them."""
        return {"ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms}


DEFAULT_LIMITS = LimitsOrder().values()


class Traffic(Input):
    """Traffic that replaces a scenario's requests.

    Either ``text``, a file's content in the format of ``traffic.own``, with an optional rate; or ``requests``, rows
    ``[arrival_s, prompt, answer_tokens, tenant, priority]`` as in a result. ``name`` is the file's.
    """

    name: Name = ""
    text: str | None = None
    requests: list[Any] | None = None
    rate_per_s: Annotated[Number, between(0.1, MAX_RATE_PER_S)] | None = None

    def parsed(self, seed: int) -> OwnTraffic:
        """Returns the requests; raises ``ValueError``."""
        if (self.text is None) == (self.requests is None):
            raise ValueError("traffic needs either the text of a file, or requests")
        if self.text is not None:
            content = self.text.encode("utf-8", "replace")
            return OwnTraffic(self.name, tuple(parse_traffic(content, rate_per_s=self.rate_per_s, seed=seed)))
        if self.rate_per_s is not None:
            raise ValueError("rate_per_s is for the text of a file: requests have arrivals")
        return OwnTraffic(self.name, tuple(parse_rows(self.requests)))


class ArmOrder(Input):
    """Changes to the default settings or a server's: knobs, and fields of ``EngineConfig`` or the server's ``url``."""

    knobs: dict[str, Any] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict)

    def arm(self, name: str, knobs: Knobs) -> Arm:
        """Returns the arm of this name, with changes of ``knobs``; raises ``ValueError``."""
        if self.knobs.get("slow_motion", 1) != 1:
            raise ValueError("slow motion stretches times on purpose, so the lab refuses it: leave it at 1")
        if unknown := sorted({*self.config} - {*ARM_CONFIG, "url"}):
            raise ValueError(
                f"the config of arm {name} cannot have {', '.join(unknown)}: use {', '.join((*ARM_CONFIG, 'url'))}"
            )
        if not isinstance(self.config.get("url", ""), str):
            raise ValueError(f"the url of arm {name} must be text")
        try:
            EngineConfig(**{setting: value for setting, value in self.config.items() if setting != "url"})
            return Arm(knobs.changed(self.knobs), self.config)
        except ValueError as error:
            raise ValueError(f"arm {name}: {error}") from None


class SweepOrder(Input):
    """One setting from a value to another, or the rate doubled until no arm keeps its limits.

    ``seconds`` is how long requests arrive at each value; without it, all are sent. There are 8 ``points`` by default.
    """

    setting: Varied
    first: Annotated[Number, Field(alias="from")]
    last: Number | None = Field(None, alias="to")
    points: Annotated[Whole, between(2, MAX_POINTS)] | None = None
    seconds: Annotated[Number, between(0.5, MAX_SECONDS)] | None = None

    def values(self) -> list[float]:
        """Returns rates that are evenly spaced or doubled, or whole numbers spaced by equal factors; raises ``ValueError``."""
        whole = self.setting != RATE
        low, high = (1, MAX_VALUE) if whole else (0.1, MAX_RATE_PER_S)
        for name, value in (("from", self.first), ("to", self.last)):
            if value is None:
                continue
            if not low <= value <= high or (whole and value % 1):
                noun = "a whole number" if whole else "a number"
                raise ValueError(f"{name} is {value:g}: use {noun} from {low} to {high}")
        if self.last is None:
            if whole or self.points is not None:
                raise ValueError("only a sweep of the rate ends by itself, at as many points as it takes: give to")
            return doubled(self.first, MAX_RATE_PER_S)
        if self.first >= self.last:
            raise ValueError(
                f"a sweep from {self.first:g} to {self.last:g} has no values: the last must be larger than the first"
            )
        return spaced(self.first, self.last, self.points or 8, whole=whole)


class FindOrder(Input):
    """A setting, the range of its values, and the limits of a value that keeps both, in ms."""

    setting: Literal["prefill_max_tokens", "max_batch_size"]
    first: Annotated[Whole, between(1, MAX_VALUE)] | None = Field(None, alias="from")
    last: Annotated[Whole, between(1, MAX_VALUE)] | None = Field(None, alias="to")
    itl_p99_ms: Annotated[Number, between(0.01, 1e6)]
    ttft_p95_ms: Annotated[Number, between(0.01, 1e6)]

    def grid(self) -> tuple[int | None, ...]:
        """Returns the values to choose from; raises ``ValueError``."""
        low, high = RANGES[self.setting]
        low, high = self.first or low, self.last or high
        grid: tuple[int | None, ...] = grid_between(low, high)
        if len(grid) < 2:
            raise ValueError(f"there is nothing to choose from {low} to {high}: widen the range")
        return (*grid, None) if self.setting == "prefill_max_tokens" else grid


class ExperimentOrder(Input):
    """An experiment: a sweep or a search if it has ``sweep`` or ``find``, otherwise a comparison."""

    scenario: str | None = None  # its name; not needed with ``traffic``
    traffic: Traffic | None = None
    seed: Annotated[Whole, between(0, MAX_SEED)] = 0
    repeats: Annotated[Whole, between(1, MAX_REPEATS)] | None = None  # by default 1 for a comparison, 3 otherwise
    # Parameters of the scenario's traffic, see ``Scenario.params``.
    params: dict[str, Any] = Field(default_factory=dict)
    limits: LimitsOrder = LimitsOrder()
    name: Name | None = None
    length: Annotated[Whole, AfterValidator(_length)] = 1  # factor for the number of the scenario's requests
    # Repeat until the spread of a figure is at most this.
    max_spread_pct: Annotated[Number, between(0.1, 100)] | None = None
    a: ArmOrder | None = None  # a missing arm is the scenario's; a sweep measures B only if it is there
    b: ArmOrder | None = None
    sweep: SweepOrder | None = None
    find: FindOrder | None = None

    def experiment(self, speed: Speed | None = None, knobs: Knobs | None = None) -> Experiment:
        """Returns the experiment.

        Args:
            speed: of the engine: parameters of a scenario's traffic that are missing are chosen for this speed.
            knobs: from which arms start; the default ones by default.

        Raises:
            ValueError: the fields do not go together; the message is one sentence for the sender.
        """
        if self.sweep is not None and self.find is not None:
            raise ValueError("an experiment is either a sweep or a search: leave out one of them")
        if self.find is not None and (self.b is not None or self.max_spread_pct is not None):
            what = "has one arm" if self.b is not None else "repeats a value until its verdict is sure"
            raise ValueError(f"a search {what}: leave out {'b' if self.b is not None else 'max_spread_pct'}")
        scenario, traffic = self._load(speed)
        alone = self.find is not None or (self.sweep is not None and self.b is None)
        compares = self.sweep is None and self.find is None
        common: dict[str, Any] = {
            "scenario": scenario,
            "traffic": traffic,
            "seed": self.seed,
            "arms": {name: self._arm(scenario, name, knobs or Knobs()) for name in ARMS[: 1 if alone else 2]},
            "repeats": self.repeats or (1 if compares else 3),
            "limits": self.limits.values(),
            "name": self.name or None,
            "max_spread_pct": self.max_spread_pct,
        }
        if self.sweep is not None:
            return self._sweep(self.sweep, common)
        if self.find is not None:
            common["limits"] = {"ttft_ms": self.find.ttft_p95_ms, "itl_ms": self.find.itl_p99_ms}
            return Find(**common, varied=self.find.setting, grid=self.find.grid())
        comparison = Comparison(**common)
        tokens = comparison.answer_tokens * comparison.repeats * len(ARMS)
        if tokens > MAX_OUTPUT_TOKENS:
            raise ValueError(
                f"this would generate {tokens:,} tokens; at most {MAX_OUTPUT_TOKENS:,} are kept: send less"
            )
        return comparison

    def _load(self, speed: Speed | None) -> tuple[Scenario, OwnTraffic | None]:
        """Returns the scenario with its parameters, and the traffic that replaces its requests, if any."""
        if self.traffic is None:
            scenario = paced(find_scenario(self.scenario), speed).changed(self.params)
            return scenario.changed({"num_requests": self.length * scenario.num_requests}), None
        if self.length != 1:
            raise ValueError("length is for a scenario: traffic of your own is sent as it is")
        traffic = self.traffic.parsed(self.seed)
        if self.params:
            names = ", ".join(sorted(self.params))
            raise ValueError(f"traffic of your own has no {names}: the file says what is sent")
        return traffic.of(OWN if self.scenario in (None, OWN.name) else find_scenario(self.scenario)), traffic

    def _arm(self, scenario: Scenario, name: ArmName, knobs: Knobs) -> Arm:
        order = {"A": self.a, "B": self.b}[name] or ArmOrder(**scenario.settings(SIDE[name]))
        return order.arm(name, knobs)

    def _sweep(self, order: SweepOrder, common: dict[str, Any]) -> Sweep:
        setting = order.setting
        if setting in KNOBS and len({getattr(arm.knobs, setting) for arm in common["arms"].values()}) > 1:
            raise ValueError(f"the sweep varies {setting} in both arms: leave it out of B")
        if order.seconds is not None and self.traffic is not None:
            raise ValueError("seconds is for a scenario: traffic of your own is sent as a whole")
        if order.seconds is not None and self.length != 1:
            raise ValueError("seconds says how long requests arrive: leave out length")
        doubles = order.last is None
        sweep = Sweep(**common, varied=setting, values=order.values(), seconds=order.seconds, doubles=doubles)
        sweep.loads()
        return sweep


def find_scenario(name: str | None) -> Scenario:
    """Returns the scenario of that name; raises ``ValueError``, which lists the names."""
    scenario = None if name is None else SCENARIOS.get(name)
    if scenario is None:
        raise ValueError(f"there is no scenario {name!r}: use one of {', '.join(SCENARIOS)}")
    return scenario


def parse_order(body: Any) -> ExperimentOrder:
    """Parse an order; raises ``ValueError`` with one sentence for the sender if a field is invalid."""
    if not isinstance(body, Mapping):
        raise ValueError('an experiment is a JSON object, such as {"scenario": "token-budget"}')
    return validated(ExperimentOrder, dict(body))


def parse_experiment(body: Any, speed: Speed | None = None, knobs: Knobs | None = None) -> Experiment:
    """Parse an order and return its experiment, see ``ExperimentOrder.experiment``."""
    return parse_order(body).experiment(speed, knobs)
