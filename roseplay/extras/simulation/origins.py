"""Where every number of a simulated deployment comes from, as data for people to read."""

from __future__ import annotations

from dataclasses import astuple

from roseplay.config import EngineConfig
from roseplay.extras.simulation.calibrated import Calibration
from roseplay.extras.simulation.cost import CostModel, Parameters
from roseplay.extras.simulation.evidence import SATURATED, Evidence
from roseplay.extras.simulation.memory import RUNTIME_BYTES, activation_bytes
from roseplay.extras.simulation.points import Measurement
from roseplay.extras.simulation.published import Point, published_of
from roseplay.formats.numbers import percent_text, whole

_DECODES, _CONTEXT, _PROMPT = 32, 2048, 2048  # of the steps whose time is shown term by term
_KINDS = {
    "itl": "ITL, median",
    "tpot": "TPOT, mean",
    "step": "one step",
    "unloaded ttft": "TTFT, idle server",
    "saturated": "TPOT, mean, with too few KV blocks",
}
_TERMS = (
    ("reading weights and KV cache", "bytes by a share of the memory's bandwidth", "{:.2f}", 1.0),
    ("the host's work", "a time per layer, whatever the step computes", "{:.0f} µs", 1e6),
    ("work per request", "a time per layer and request", "{:.2f} µs", 1e6),
    ("computing prompts", "operations by a share of the matrix rate", "{:.2f}", 1.0),
    ("exchange between GPUs", "two all-reduces per layer by a share of the link's rate", "{:.2f}", 1.0),
    ("attention, token by token", "bytes of the KV cache by a share of the memory's bandwidth", "{:.2f}", 1.0),
    ("attention of long prompts", "operations by a share of the matrix rate", "{:.2f}", 1.0),
    ("a step that is not replayed", "a time; parts of prompts above 32 tokens are not replayed", "{:.1f} ms", 1e3),
)
_OF_CPUS = tuple(name for name, *_ in _TERMS[-3:])
_FORMULA = "A step takes the sum of these times. A sum, and not the larger of reading and computing, fits published steps better."
_PADDED = " Decode steps are padded to the sizes of CUDA graphs."
_FITTED = "Fitted parameters trade against each other: they describe the points, and are no facts about the hardware."
_NOT_MODELLED = (
    "Answers are a fixed text, always as long as was asked for.",
    "A server around the engine, its network and its tokenizer: about {server_ms:.0f} ms before a first token. They are only"
    " added where an estimate is compared with the TTFT of a whole server.",
    "The host's work is part of the parameters: CUDA graphs only pad steps, and batched append changes nothing.",
    "Sliding windows and expert parallelism. Experts are taken to be chosen at random.",
)


def origins(cost: CostModel, evidence: Evidence, config: EngineConfig, num_blocks: int) -> dict[str, object]:
    """Returns what stands behind the figures of one deployment, as JSON; ``num_blocks`` includes block 0."""
    published = published_of(cost.gpu.name, cost.shape.name, cost.shape.weights, cost.tensor_parallel)
    sentence, formula = str(evidence), _FORMULA if cost.gpu.cpu else _FORMULA + _PADDED
    return {
        "label": evidence.label,
        "said": f"{sentence[0].upper()}{sentence[1:]}.",
        "labels": _labels(evidence),
        "formula": f"{formula} {_FITTED}" if evidence.calibrated_on else formula,
        "gpu": _gpu(cost),
        "memory": _memory(cost, config, num_blocks),
        "examples": [
            f"a decode of {_DECODES} requests with {whole(_CONTEXT)} tokens each",
            f"a prompt of {whole(_PROMPT)} tokens",
        ],
        "terms": _terms(cost, evidence),
        "points": [*_own_points(evidence.own), *(_published_point(cost, point) for point in published)],
        "not_modelled": _not_modelled(cost),
    }


def _labels(evidence: Evidence) -> list[dict[str, object]]:
    calibrated = evidence.calibrated_on > 0
    return [
        {"label": "published", "means": "Measured by others, with a source.", "now": False},
        {
            "label": "calibrated on n points (error e)",
            "means": "Parameters fitted to points that were measured on this kind of hardware with this weight format, published"
            " ones or your own; e is the error at points that were held out, one at a time.",
            "now": calibrated,
        },
        {"label": "uncalibrated", "means": "Default parameters.", "now": not calibrated},
        {
            "label": SATURATED,
            "means": "Requests arrive faster than they are answered: a figure depends on the length of the run and has no error"
            " bound.",
            "now": False,
        },
    ]


def _gpu(cost: CostModel) -> dict[str, object]:
    gpu, count = cost.gpu, cost.tensor_parallel
    rate = gpu.flops(cost.shape.weights) / 1e12
    rows = [
        ["GPUs", f"{count} x {gpu.title}" if count > 1 else gpu.title],
        ["memory", f"{gpu.memory_gib:g} GiB each"],
        ["its bandwidth", f"{gpu.bandwidth_tb_s:g} TB/s"],
        ["matrix rate", f"{rate:g} TFLOP/s, dense, as used for weights in {cost.shape.weights}"],
    ]
    if gpu.link_gb_s is not None:
        rows.append(["link", f"{gpu.link_gb_s:g} GB/s in one direction"])
    return {"rows": rows, "source": gpu.source}


def _memory(cost: CostModel, config: EngineConfig, num_blocks: int) -> list[list[str]]:
    parts, shape = cost.tensor_parallel, cost.shape
    utilization, block_size = config.gpu_memory_utilization, config.block_size
    chosen = config.num_blocks is not None or config.kv_cache_memory is not None
    block_bytes = shape.kv_bytes_per_token(parts) * parts * block_size
    return [
        [
            "may be used",
            f"{_gib(parts * cost.gpu.memory_bytes * utilization)}, {percent_text(100 * utilization, 0)} of the GPUs' memory",
        ],
        ["weights", f"{_gib(shape.stored_bytes)}: {shape.num_parameters / 1e9:.1f} B parameters in {shape.weights}"],
        ["activations", f"{_gib(parts * activation_bytes(cost))}, estimated for the largest step"],
        ["runtime", f"{_gib(parts * RUNTIME_BYTES)}, assumed"],
        [
            "KV cache",
            f"{_gib(block_bytes * num_blocks)} in {shape.kv}, {'as set' if chosen else 'what is left'}: {whole(num_blocks - 1)} blocks"
            f" of {block_size} tokens",
        ],
    ]


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def _terms(cost: CostModel, evidence: Evidence) -> list[dict[str, object]]:
    """Returns the terms of the sum: their parameter, its default, and their ms in both example steps."""
    loads = (cost.decode(_DECODES, _CONTEXT), cost.prompt(_PROMPT))
    parts = [cost.terms(load) * cost.parameters.as_vector() * 1e3 for load in loads]
    defaults = Parameters.start(cost.gpu, cost.shape)
    terms: list[dict[str, object]] = []
    for index, (name, words, shown, factor) in enumerate(_TERMS):
        if (name == "exchange between GPUs" and cost.tensor_parallel == 1) or (name in _OF_CPUS and not cost.gpu.cpu):
            continue
        value, default = (shown.format(factor * astuple(values)[index]) for values in (cost.parameters, defaults))
        fitted = f"fitted, by default {default}" if evidence.calibrated_on else "default"
        ms = [round(float(part[index]), 2) for part in parts]
        terms.append({"name": name, "words": words, "value": value, "origin": fitted, "ms": ms})
    return terms


def _published_point(cost: CostModel, point: Point) -> dict[str, object]:
    """Returns a published point beside what the cost model gives for it; without that where the scheduler decides."""
    seconds: float | None = None
    if point.measured != "saturated":
        seconds = float(point.terms() @ cost.parameters.as_vector())
        seconds += cost.parameters.server_s if point.measured == "unloaded ttft" else 0.0
    return _point(point, seconds, point.engine, f"{point.source}, {point.file}")


def _own_points(own: Calibration | None) -> list[dict[str, object]]:
    """Returns the points of a user's calibration, each beside its prediction from the others."""
    if own is None:
        return []
    pairs = zip(own.points, own.predicted_s, strict=True)
    return [_point(point, seconds, "your calibration", f"measured on {own.measured}") for point, seconds in pairs]


def _point(point: Measurement, seconds: float | None, engine: str, source: str) -> dict[str, object]:
    return {
        "engine": engine,
        "measures": _KINDS[point.measured],
        "load": _load(point),
        "measured_ms": round(1e3 * point.seconds, 2),
        "predicted_ms": None if seconds is None else round(1e3 * seconds, 2),
        "off_percent": None if seconds is None else round(100 * (seconds / point.seconds - 1), 1),
        "ttft_s": point.ttft_s,
        "source": source,
    }


def _load(point: Measurement) -> str:
    if point.measured == "step":
        return (
            f"{point.streams} × {whole(point.context)} tokens"
            if point.context
            else f"a prompt of {whole(point.prompt)} tokens"
        )
    return f"{point.streams} × {whole(point.prompt)} + {whole(point.answer)} tokens"


def _not_modelled(cost: CostModel) -> list[str]:
    lines = [line.format(server_ms=1e3 * cost.parameters.server_s) for line in _NOT_MODELLED]
    if cost.shape.unmodelled:
        lines.append(f"Of {cost.shape.name}: {cost.shape.unmodelled}.")
    return lines
