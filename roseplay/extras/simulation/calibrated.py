"""A deployment's own measurements: fits the cost model to them, and keeps the outcome as a file.

The file is what ``run_as`` and ``roseplay plan --gpu`` take in place of a GPU's name. It names the GPU, or describes the
CPU, and holds the points, the fitted parameters and the error at points that were held out.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from roseplay.extras.simulation.calibration import (
    CPU_HOLD,
    GPU_HOLD,
    LEAST_POINTS,
    Errors,
    Hold,
    fit,
    fit_first_tokens,
    predict_held_out,
)
from roseplay.extras.simulation.cost import CostModel, Parameters
from roseplay.extras.simulation.gpus import GPU, SimulationError, find_gpu
from roseplay.extras.simulation.limits import Name, Seconds, Streams
from roseplay.extras.simulation.points import Measurement
from roseplay.formats.invalid import first_fault
from roseplay.formats.numbers import many

SUFFIX = ".json"
_FORMAT = 1
_SAME_CONTEXT = 1.05  # lengths that differ by less are of one load: clients draw lengths at random
_NOTE = "the parameters were fitted together and trade against each other: they are no facts about the hardware"


def _complete(parameters: Any) -> Any:
    """Returns the value itself, unless it lacks a parameter: its default does not fit to the others."""
    for field in fields(Parameters) if isinstance(parameters, dict) else ():
        if field.name not in parameters:
            raise ValueError(f"{field.name} is missing")
    return parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The cost model's parameters, fitted to measurements of one deployment."""

    # What was measured.
    gpu: Annotated[GPU, BeforeValidator(lambda gpu: find_gpu(gpu) if isinstance(gpu, str) else gpu)]
    model: Name  # of the deployment, like the three that follow
    weights: Name
    kv: Name
    tensor_parallel: Streams
    # What was measured, one for each load.
    points: Annotated[tuple[Measurement, ...], Field(min_length=LEAST_POINTS, max_length=1000)]
    predicted_s: tuple[Seconds, ...]  # ``[points]`` seconds, each predicted from all other points
    parameters: Annotated[Parameters, BeforeValidator(_complete)]  # fitted to all points

    def __post_init__(self) -> None:
        if len(self.predicted_s) != len(self.points):
            raise ValueError(f"predicted_s has {len(self.predicted_s)} values, but there are {len(self.points)} points")

    @classmethod
    def of(cls, cost: CostModel, points: Sequence[Measurement]) -> Self:
        """Calibrate a deployment.

        Args:
            cost: of the deployment; its parameters are the start.
            points: measured as ``itl`` or ``tpot``. Of several at the same load, the median counts.

        Raises:
            SimulationError: there are fewer than three different loads.
        """
        loads = _loads(points)
        if len(loads) < LEAST_POINTS:
            found = many(len(points), "measurement")
            found += f" at {many(len(loads), 'load')}" if len(loads) < len(points) else ""
            raise SimulationError(
                f"calibrating needs at least {LEAST_POINTS} different loads, such as 1, 16 and 64 streams, but there"
                f" {'is' if len(points) == 1 else 'are'} {found}"
            )
        terms, seconds = np.array([p.terms_of(cost) for p in loads]), np.array([p.seconds for p in loads])
        hold = CPU_HOLD if cost.gpu.cpu else GPU_HOLD
        predicted = predict_held_out(terms, seconds, cost.parameters, hold)
        shape = cost.shape
        return cls(
            gpu=cost.gpu,
            model=shape.name,
            weights=shape.weights,
            kv=shape.kv,
            tensor_parallel=cost.tensor_parallel,
            points=loads,
            predicted_s=tuple(map(float, predicted)),
            parameters=_with_first_tokens(cost, fit(terms, seconds, cost.parameters, hold), loads, hold),
        )

    @property
    def errors(self) -> Errors:
        """The errors of the points' predictions from all others."""
        return Errors.of(np.array(self.predicted_s), np.array([point.seconds for point in self.points]))

    @property
    def measured(self) -> str:
        """What was measured, in words: ``qwen3-8b on 2 x H100 SXM``."""
        count = f"{self.tensor_parallel} x " if self.tensor_parallel > 1 else ""
        return f"{self.model} on {count}{self.gpu.title}"

    def write(self, file: Path) -> None:
        """Write the file; raises ``OSError``, and ``SimulationError`` if ``read`` would refuse it."""
        gpu = asdict(self.gpu) if self.gpu.cpu else self.gpu.name
        points = [{k: v for k, v in asdict(point).items() if v} for point in self.points]
        document = {"roseplay_calibration": _FORMAT, "note": _NOTE, **asdict(self), "gpu": gpu, "points": points}
        document["errors"] = asdict(self.errors)  # for people: they follow from the points
        content = json.dumps(document, indent=2).encode() + b"\n"
        self.parse(content, f"what would be written to {file}")
        file.write_bytes(content)

    @classmethod
    def read(cls, file: Path) -> Calibration:
        """Read a file that ``write`` wrote; raises ``SimulationError``."""
        try:
            content = file.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: the name has a null character
            raise SimulationError(f"{file.name}: {getattr(error, 'strerror', error)}") from None
        return cls.parse(content, file.name)  # not its path, which a page's visitors may not know

    @staticmethod
    def parse(content: bytes, name: str) -> Calibration:
        """Returns the calibration in a file's content; raises ``SimulationError`` with the file's name."""
        try:
            document = from_json(content)
        except ValueError:
            raise SimulationError(f"{name} is not a calibration file: it is not JSON") from None
        if not isinstance(document, dict) or document.get("roseplay_calibration") != _FORMAT:
            raise SimulationError(f"{name} is not a calibration file: make one with roseplay calibrate")
        try:
            return _FILE.validate_json(content)
        except ValidationError as error:
            raise SimulationError(f"{name} is damaged: {first_fault(error)}") from None


_FILE = TypeAdapter(Calibration)


def find_hardware(name: str) -> tuple[GPU, Calibration | None]:
    """Returns the GPU with this name, or that of a calibration file and the calibration; raises ``SimulationError``."""
    if not name.endswith(SUFFIX):
        return find_gpu(name), None
    calibration = Calibration.read(Path(os.path.expanduser(name)))
    return calibration.gpu, calibration


def _loads(points: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Returns one point for each load, with the median of what was measured there."""
    groups: list[list[Measurement]] = []
    for point in points:
        same = next((group for group in groups if _is_same_load(point, group[0])), None)
        if same is None:
            groups.append([point])
        else:
            same.append(point)
    return tuple(
        replace(
            group[0],
            seconds=median(point.seconds for point in group),
            ttft_s=_median(point.ttft_s for point in group),
            prompts_s=_median(point.prompts_s for point in group),
        )
        for group in groups
    )


def _is_same_load(one: Measurement, other: Measurement) -> bool:
    contexts = [point.prompt + point.answer / 2 for point in (one, other)]
    same = (one.measured, one.streams) == (other.measured, other.streams)
    return same and max(contexts) <= _SAME_CONTEXT * min(contexts)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _with_first_tokens(cost: CostModel, fitted: Parameters, points: Sequence[Measurement], hold: Hold) -> Parameters:
    """Returns the parameters with those of prompts fitted as well, if first tokens of unloaded prompts were measured."""
    rows = []
    for point in points:
        if point.prompts_s is not None:
            rows.append((cost.prompt(point.prompt, point.streams), 0.0, point.prompts_s))
        elif point.ttft_s is not None and point.streams == 1:
            rows.append((cost.prompt(point.prompt), 1.0, point.ttft_s))
    if not rows:
        return fitted
    loads, served, measured = zip(*rows, strict=True)
    parts_s = np.array([cost.terms(load) for load in loads]) * fitted.as_vector()
    return fit_first_tokens(parts_s, np.array(served), np.array(measured), fitted, hold)
