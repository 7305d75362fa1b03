"""Fits a scenario to an engine's speed: a slow engine gets fewer requests, shorter answers and lower rates."""

from __future__ import annotations

import dataclasses

from roseplay.config import Knobs
from roseplay.traffic.pace import LEAST_REQUESTS, Conditions, Size, Speed, answered_s, fitted, sustained_rate
from roseplay.traffic.scenario import PARAM_LIMITS, Scenario

RUN_S = 20.0  # the longest planned run


def paced(scenario: Scenario, speed: Speed | None) -> Scenario:
    """Returns the scenario scaled down so that each arm's run takes about ``RUN_S`` seconds at most.

    Prompts stay as they are: they are what a scenario is about. Nothing changes if the engine is fast enough or its
    speed is unknown.
    """
    if speed is None:
        return scenario
    under = [_conditions(knobs) for knobs in scenario.arms().values()]
    size = Size(requests=scenario.num_requests, answer=scenario.max_new_tokens, mix=scenario.mix)
    size = fitted(size, lambda one: max(answered_s(one, speed, arm) for arm in under), RUN_S, prompts=False)
    scenario = dataclasses.replace(scenario, num_requests=size.requests, max_new_tokens=size.answer)
    if scenario.rate_per_s is None:
        return scenario
    # The most that the faster arm sustains: the slower one then falls behind, as at the usual rate on a fast engine.
    most = max(sustained_rate(size, speed, arm) for arm in under)
    rate = max(PARAM_LIMITS["rate_per_s"][0], min(scenario.rate_per_s, float(f"{most:.1g}")))
    requests = max(min(LEAST_REQUESTS, size.requests), min(size.requests, round(rate * RUN_S)))
    return dataclasses.replace(scenario, rate_per_s=rate, num_requests=requests)


def _conditions(knobs: Knobs) -> Conditions:
    limits = [limit for limit in (knobs.prefill_max_tokens, knobs.step_max_tokens) if limit]
    return Conditions(places=knobs.max_batch_size, budget=min(limits, default=None), sharing=knobs.same_step_sharing)
