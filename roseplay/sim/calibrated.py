"""A deployment's own measurements: fits the cost model to them, and keeps the outcome as a file.

The file is what ``run_as`` and ``roseplay plan --gpu`` take in place of a GPU's name. It names the GPU, or describes the
CPU, and holds the points, the fitted parameters and the error at points that were held out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np

from roseplay.sim.calibration import (
    CPU_HOLD,
    GPU_HOLD,
    LEAST_POINTS,
    Errors,
    Hold,
    fit,
    fit_first_tokens,
    predict_held_out,
)
from roseplay.sim.cost import CostModel, Parameters
from roseplay.sim.gpus import GPU, SimulationError, find_gpu
from roseplay.sim.points import Measurement

SUFFIX = ".json"
_FORMAT = 1
_LEAST, _MOST = 1e-12, 1e12  # of any number in a file, so that products of them are finite
_RATES = ("fp8_tflops", "fp4_tflops", "link_gb_s")  # of a GPU, where it has them
_SAME_CONTEXT = 1.05  # lengths that differ by less are of one load: clients draw lengths at random
_NOTE = "the parameters were fitted together and trade against each other: they are no facts about the hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The cost model's parameters, fitted to measurements of one deployment.

    Attributes:
        gpu: what was measured.
        model, weights, kv, tensor_parallel: of the deployment.
        points: what was measured, one for each load.
        predicted_s: ``[points]`` seconds, each predicted from all other points.
        errors: the errors of these.
        parameters: fitted to all points.
    """

    gpu: GPU
    model: str
    weights: str
    kv: str
    tensor_parallel: int
    points: tuple[Measurement, ...]
    predicted_s: tuple[float, ...]
    errors: Errors
    parameters: Parameters

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
            found = _counted(len(points), "measurement")
            found += f" at {_counted(len(loads), 'load')}" if len(loads) < len(points) else ""
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
            errors=Errors.of(predicted, seconds),
            parameters=_with_first_tokens(cost, fit(terms, seconds, cost.parameters, hold), loads, hold),
        )

    @property
    def measured(self) -> str:
        """What was measured, in words: ``qwen3-8b on 2 x H100 SXM``."""
        count = f"{self.tensor_parallel} x " if self.tensor_parallel > 1 else ""
        return f"{self.model} on {count}{self.gpu.title}"

    def write(self, file: Path) -> None:
        """Write the file; raises ``OSError``."""
        gpu = asdict(self.gpu) if self.gpu.cpu else self.gpu.name
        points = [{k: v for k, v in asdict(point).items() if v} for point in self.points]
        document = {"roseplay_calibration": _FORMAT, "note": _NOTE, **_plain(self), "gpu": gpu, "points": points}
        file.write_text(json.dumps(document, indent=2) + "\n", "utf-8")

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file that ``write`` wrote; raises ``SimulationError``."""
        try:
            found = json.loads(file.read_text("utf-8"))
        except OSError as error:
            raise SimulationError(f"{file}: {error.strerror}") from None
        except ValueError:
            raise SimulationError(f"{file} is not a calibration file: it is not JSON") from None
        if not isinstance(found, Mapping) or found.get("roseplay_calibration") != _FORMAT:
            raise SimulationError(f"{file} is not a calibration file: make one with roseplay calibrate")
        try:
            return cls._of_document(found)
        except KeyError as error:
            raise SimulationError(f"{file} is damaged: it has no {error.args[0]}") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise SimulationError(f"{file} is damaged: {' '.join(str(error).split())}") from None

    @classmethod
    def _of_document(cls, found: Mapping[str, Any]) -> Self:
        gpu, parameters, errors = found["gpu"], found["parameters"], found["errors"]
        described = isinstance(gpu, Mapping)
        about = {name: found[name] for name in ("model", "weights", "kv", "tensor_parallel")}
        _check_numbers(parameters, zero=("server_s",))
        _check_numbers(errors, zero=tuple(errors))
        _check_numbers({"tensor_parallel": about["tensor_parallel"]})
        if described:
            _check_numbers({name: gpu[name] for name in ("memory_gib", "bandwidth_tb_s", "bf16_tflops")})
            _check_numbers({name: gpu[name] for name in _RATES if gpu.get(name) is not None})
        return cls(
            gpu=GPU(**gpu) if described else find_gpu(gpu),
            points=tuple(Measurement(**point) for point in found["points"]),
            predicted_s=tuple(found["predicted_s"]),
            errors=Errors(**errors),
            parameters=Parameters(**parameters),
            **about,
        )


def find_hardware(name: str) -> tuple[GPU, Calibration | None]:
    """Returns the GPU with this name, or that of a calibration file and the calibration; raises ``SimulationError``."""
    if not name.endswith(SUFFIX):
        return find_gpu(name), None
    calibration = Calibration.read(Path(name).expanduser())
    return calibration.gpu, calibration


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


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


def _check_numbers(values: Mapping[str, Any], zero: Sequence[str] = ()) -> None:
    """Raises ``ValueError`` unless all values are numbers of a possible size; those named in ``zero`` may be 0, or tiny."""
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (0 if name in zero else _LEAST) <= value <= _MOST:
            raise ValueError(f"{name} is {str(value)[:40]!r}")


def _plain(calibration: Calibration) -> dict[str, Any]:
    """Returns the fields whose values are JSON already, and those of nested records as objects."""
    found = {field.name: getattr(calibration, field.name) for field in fields(calibration)}
    return found | {"errors": asdict(calibration.errors), "parameters": asdict(calibration.parameters)}
