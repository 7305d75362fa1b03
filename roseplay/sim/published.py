"""Published measurements with their sources (``published.json``), as points to compare with and to calibrate on.

Figures are facts, and only a few dozen of them are included. Each group of rows names its source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from roseplay.sim.cost import CostModel, StepLoad
from roseplay.sim.gpus import find_gpu
from roseplay.sim.models import find_shape

_FILE = Path(__file__).with_name("published.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured duration, and what was measured.

    Attributes:
        measured: ``itl`` (median gap between tokens of a closed loop), ``tpot`` (its mean), ``step`` (one step),
            ``unloaded ttft`` (first token on an idle server) or ``saturated`` (``tpot`` where the requests need more
            KV blocks than there are).
        prompt, answer: tokens; a step without an answer computes the prompt alone.
        streams: requests at once.
        context: tokens in the cache of each stream of a decode step.
        seconds: the measured duration.
        ttft_s: measured time to first token, if it was published.
        engine, source: what was measured, and where it was published.
    """

    gpu: str
    model: str
    weights: str
    kv: str = "bf16"
    tensor_parallel: int
    engine: str
    measured: str
    prompt: int = 0
    answer: int = 0
    streams: int = 1
    context: int = 0
    seconds: float
    ttft_s: float | None = None
    source: str

    def cost_model(self) -> CostModel:
        """Returns the cost model of its deployment, with default parameters."""
        return CostModel(find_shape(self.model, self.weights, self.kv), find_gpu(self.gpu), self.tensor_parallel)

    def terms(self) -> np.ndarray:
        """Returns the ``[5]`` terms whose products with ``Parameters.as_vector`` add up to its predicted seconds.

        Of an unloaded TTFT, ``Parameters.server_s`` comes on top.
        """
        cost = self.cost_model()
        if self.measured == "itl":
            return itl_terms(cost, self.streams, self.prompt, self.answer)
        if self.measured in ("tpot", "saturated"):
            return tpot_terms(cost, self.streams, self.prompt, self.answer)
        if self.context:
            return cost.terms(StepLoad.decode(self.streams, self.context))
        return cost.terms(StepLoad.prompt(self.prompt))


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


@cache
def published() -> tuple[Point, ...]:
    """Returns all points."""
    return tuple(point for group in json.loads(_FILE.read_text("utf-8")) for point in _of_group(group))


def published_of(gpu: str, model: str, weights: str, tensor_parallel: int) -> list[Point]:
    """Returns all points of one deployment, of any server."""
    wanted = (gpu, model, weights, tensor_parallel)
    return [p for p in published() if (p.gpu, p.model, p.weights, p.tensor_parallel) == wanted]


def _of_group(group: dict[str, Any]) -> list[Point]:
    names = ("gpu", "model", "weights", "tensor_parallel", "engine", "measured", "source")
    about = {name: group[name] for name in names} | {"kv": group.get("kv", "bf16")}
    length = group.get("length", 1)  # mean share of the nominal lengths, where these were varied
    found = []
    for row in group["rows"]:
        if "streams" not in row:  # a step
            sizes = {"prompt": row.get("prompt", 0), "streams": row.get("decodes", 1), "context": row.get("context", 0)}
            found.append(Point(**about, **sizes, seconds=row["ms"] / 1e3))
            continue
        first = row.get("ttft_ms") or [None] * len(row["streams"])
        for streams, ms, ttft_ms in zip(row["streams"], row["ms"], first, strict=True):
            found.append(
                Point(
                    **about,
                    prompt=round(row["prompt"] * length),
                    answer=round(row["answer"] * length),
                    streams=streams,
                    seconds=ms / 1e3,
                    ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
                )
            )
    return found
