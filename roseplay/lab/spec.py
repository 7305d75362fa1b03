"""Parses the parts of an experiment: its traffic, the settings of an arm, limits and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roseplay.config import EngineConfig, Knobs
from roseplay.lab.own_traffic import OWN, OwnTraffic, checked_object, parse_own_traffic
from roseplay.settings import settings_of
from roseplay.traffic.pace import Speed
from roseplay.traffic.paced import paced
from roseplay.traffic.scenario import SIDES, Scenario, checked_number
from roseplay.traffic.scenarios import SCENARIOS

ARMS = ("A", "B")
SIDE = dict(zip(ARMS, SIDES, strict=True))
MAX_REPEATS = 20
LENGTHS = (1, 4, 10)
MAX_SEED = 2**31 - 1
MAX_OUTPUT_TOKENS = 200_000  # in all runs together: the result has a number for each
DEFAULT_LIMITS = {"ttft_ms": 500.0, "itl_ms": 50.0}

# The other settings belong to the server, or would change what the experiment measures.
ARM_CONFIG = tuple(name for name, setting in settings_of(EngineConfig).items() if setting.lab)


@dataclass(frozen=True, slots=True)
class Arm:
    """The settings of an engine: all knobs, and the ``EngineConfig`` fields that it sets or its server's ``url``."""

    knobs: Knobs
    config: Mapping[str, Any]


def parse_load(body: Mapping[str, Any], seed: int, speed: Speed | None = None) -> tuple[Scenario, OwnTraffic | None]:
    """Returns the scenario with the requested parameters, and the traffic that replaces its requests, if any.

    Other parameters are adapted to the engine's speed, if given. ``length`` multiplies the number of requests.

    Raises:
        ValueError: the scenario is unknown, or its parameters or the traffic are invalid.
    """
    params = checked_object(body.get("params"), "params")
    length = parse_length(body.get("length"))
    if body.get("traffic") is None:
        scenario = paced(find_scenario(body.get("scenario")), speed).changed(params)
        return scenario.changed({"num_requests": length * scenario.num_requests}), None
    if length != 1:
        raise ValueError("length is for a scenario: traffic of your own is sent as it is")
    traffic = parse_own_traffic(body["traffic"], seed)
    if params:
        raise ValueError(f"traffic of your own has no {', '.join(sorted(params))}: the file says what is sent")
    named = body.get("scenario")
    return traffic.of(OWN if named in (None, OWN.name) else find_scenario(named)), traffic


def parse_length(value: Any) -> int:
    """Returns the factor for the number of requests, 1 for ``None``; raises ``ValueError``."""
    if value is not None and (isinstance(value, bool) or value not in LENGTHS):
        raise ValueError(f"length is {value!r}: use {', '.join(map(str, LENGTHS[:-1]))} or {LENGTHS[-1]}")
    return 1 if value is None else int(value)


def parse_seed(value: Any) -> int:
    """Returns a seed, 0 for ``None``; raises ``ValueError``."""
    return int(checked_number("seed", 0 if value is None else value, 0, MAX_SEED))


def find_scenario(name: Any) -> Scenario:
    """Returns the scenario of that name; raises ``ValueError``, which lists the names."""
    scenario = SCENARIOS.get(name) if isinstance(name, str) else None
    if scenario is None:
        raise ValueError(f"there is no scenario {name!r}: use one of {', '.join(SCENARIOS)}")
    return scenario


def parse_limits(limits: Any) -> dict[str, float]:
    """Returns the goodput limits in ms: a request's TTFT, and the p99 of its ITLs; raises ``ValueError``."""
    given = checked_object(limits, "limits", DEFAULT_LIMITS)
    for name, value in given.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1e6:
            raise ValueError(f"the limit {name} is {value!r}: use milliseconds above 0")
    return {**DEFAULT_LIMITS, **{name: float(value) for name, value in given.items()}}


def parse_arm(scenario: Scenario, arm: str, given: Any) -> Arm:
    """Returns an arm, the scenario's if ``given`` is ``None``; raises ``ValueError``."""
    if given is None:
        return Arm(scenario.arms()[SIDE[arm]], scenario.configs()[SIDE[arm]])
    given = checked_object(given, f"arm {arm}", ("knobs", "config"))
    knobs = checked_object(given.get("knobs"), f"the knobs of arm {arm}")
    if knobs.get("slow_motion", 1) != 1:
        raise ValueError("slow motion stretches times on purpose, so the lab refuses it: leave it at 1")
    what = f"the config of arm {arm}"
    names = (*ARM_CONFIG, "url")
    config = checked_object(given.get("config"), what, names)
    if not isinstance(config.get("url", ""), str):
        raise ValueError(f"the url of arm {arm} must be text")
    try:
        EngineConfig(**{name: value for name, value in config.items() if name != "url"})
        return Arm(Knobs().changed(knobs), config)
    except ValueError as error:
        raise ValueError(f"arm {arm}: {error}") from None
