"""Measured durations of one deployment, and the terms of the cost model that predict them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from roseplay.extras.simulation.cost import CostModel, StepLoad
from roseplay.extras.simulation.limits import Seconds, Streams, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    # ``itl`` (median gap between tokens of a closed loop), ``tpot`` (its mean), ``step`` (one step), ``unloaded ttft``
    # (first token on an idle server) or ``saturated`` (``tpot`` where the requests need more KV blocks than there are).
    measured: Literal["itl", "tpot", "step", "unloaded ttft", "saturated"]
    prompt: Tokens = 0  # tokens; a step without an answer computes the prompt alone
    answer: Tokens = 0
    streams: Streams = 1  # requests at once
    context: Tokens = 0  # tokens in the cache of each stream of a decode step
    seconds: Seconds  # the measured duration
    ttft_s: Seconds | None = None  # measured time to first token, if known; of one stream alone, it calibrates prompts
    # Seconds of the steps that computed the prompts of all streams and nothing else, if known.
    prompts_s: Seconds | None = None

    def terms_of(self, cost: CostModel) -> np.ndarray:
        """Returns the ``[8]`` terms whose products with ``Parameters.as_vector`` add up to its predicted seconds.

        Of an unloaded TTFT, ``Parameters.server_s`` comes on top.
        """
        if self.measured == "itl":
            return self._itl_terms(cost)
        if self.measured in ("tpot", "saturated"):
            return self._tpot_terms(cost)
        if self.context:
            return cost.terms(cost.decode(self.streams, self.context))
        return cost.terms(cost.prompt(self.prompt))

    def _itl_terms(self, cost: CostModel) -> np.ndarray:
        # A decode step halfway through the answers: the median gap, if fewer than half of the steps compute prompts, too.
        return cost.terms(cost.decode(self.streams, self.prompt + self.answer / 2))

    def _tpot_terms(self, cost: CostModel) -> np.ndarray:
        # While one answer streams, every other client sends one prompt, whose cost is added to steps of the answers.
        load = cost.prompt(self.prompt)
        load.kv_tokens = load.sequences = 0  # counted with the decode step
        added = cost.terms(load) - cost.terms(StepLoad(tokens=0))
        return self._itl_terms(cost) + added * (self.streams - 1) / self.answer
