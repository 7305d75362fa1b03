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

from roseplay.extras.simulation.cost import CostModel
from roseplay.extras.simulation.gpus import find_gpu
from roseplay.extras.simulation.models import find_shape
from roseplay.extras.simulation.points import Measurement

_FILE = Path(__file__).with_name("published.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Measurement):
    """A published measurement, and what was measured."""

    gpu: str
    model: str
    weights: str
    kv: str = "bf16"
    tensor_parallel: int
    engine: str  # what was measured
    source: str  # where it was published; ``file`` is a part of it
    file: str

    def cost_model(self) -> CostModel:
        """Returns the cost model of its deployment, with default parameters."""
        return CostModel(find_shape(self.model, self.weights, self.kv), find_gpu(self.gpu), self.tensor_parallel)

    def terms(self) -> np.ndarray:
        """Returns the ``[8]`` terms of its own deployment, see ``Measurement.terms_of``."""
        return self.terms_of(self.cost_model())


@cache
def published() -> tuple[Point, ...]:
    return tuple(point for group in json.loads(_FILE.read_text("utf-8")) for point in _of_group(group))


def published_of(gpu: str, model: str, weights: str, tensor_parallel: int) -> list[Point]:
    """Returns all points of one deployment, of any server."""
    wanted = (gpu, model, weights, tensor_parallel)
    return [p for p in published() if (p.gpu, p.model, p.weights, p.tensor_parallel) == wanted]


def _of_group(group: dict[str, Any]) -> list[Point]:
    names = ("gpu", "model", "weights", "tensor_parallel", "engine", "measured", "source", "file")
    about = {name: group[name] for name in names} | {"kv": group.get("kv", "bf16")}
    length = group.get("length", 1)  # mean share of the nominal lengths, where these were varied
    points = []
    for row in group["rows"]:
        if "streams" not in row:  # a step
            sizes = {"prompt": row.get("prompt", 0), "streams": row.get("decodes", 1), "context": row.get("context", 0)}
            points.append(Point(**about, **sizes, seconds=row["ms"] / 1e3))
            continue
        first = row.get("ttft_ms") or [None] * len(row["streams"])
        for streams, ms, ttft_ms in zip(row["streams"], row["ms"], first, strict=True):
            points.append(
                Point(
                    **about,
                    prompt=round(row["prompt"] * length),
                    answer=round(row["answer"] * length),
                    streams=streams,
                    seconds=ms / 1e3,
                    ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
                )
            )
    return points
