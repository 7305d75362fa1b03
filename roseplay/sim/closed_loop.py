"""The mean time per output token that a number of clients see who each send the next request when the last has ended."""

from __future__ import annotations

import numpy as np

from roseplay.sim.cost import CostModel, StepLoad


def itl_terms(cost: CostModel, streams: int, prompt: int, answer: int) -> np.ndarray:
    """Returns the ``[5]`` terms (``CostModel.terms``) of a decode step halfway through the answers.

    This is the median gap between tokens, as long as fewer than half of the steps also compute prompts.
    """
    return cost.terms(StepLoad.decode(streams, prompt + answer / 2))


def tpot_terms(cost: CostModel, streams: int, prompt: int, answer: int) -> np.ndarray:
    """Returns the terms of the mean gap: a decode step, and a share of the other clients' prompts.

    While one answer streams, every other client sends one prompt, whose cost is added to steps of the answers.
    """
    load = StepLoad.prompt(prompt)
    load.kv_tokens = load.sequences = 0  # counted with the decode step
    added = cost.terms(load) - cost.terms(StepLoad(tokens=0))
    return itl_terms(cost, streams, prompt, answer) + added * (streams - 1) / answer
