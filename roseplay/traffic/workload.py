"""A workload: a list of requests and their arrival times, fixed before the first one is sent.

Two engines, or one engine under two settings, do the same work when they play the same list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from roseplay.config import SamplingParams
from roseplay.traffic.prompts import Prompt, PromptMix, PromptSource


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float  # seconds after the start
    prompt: Prompt  # text or token ids
    params: SamplingParams  # its sampling parameters, with a seed of its own if it samples

    def of_tenant(self, tenant: str) -> Arrival:
        return dataclasses.replace(self, params=dataclasses.replace(self.params, tenant=tenant))


Workload = list[Arrival]


def make_workload(
    source: PromptSource,
    times_s: Sequence[float],
    *,
    mix: PromptMix | None = None,
    params: SamplingParams | None = None,
    seed: int = 0,
) -> Workload:
    """Returns one arrival for each time. Requests that sample without a seed get consecutive ones from ``seed``."""
    mix = mix or PromptMix()
    params = params or SamplingParams()
    prompts = mix.prompts(source, len(times_s))
    return [
        Arrival(at_s, prompt, _seeded(params, seed + index))
        for index, (at_s, prompt) in enumerate(zip(times_s, prompts, strict=True))
    ]


def _seeded(params: SamplingParams, seed: int) -> SamplingParams:
    if params.temperature == 0 or params.seed is not None:
        return params
    return dataclasses.replace(params, seed=seed)
