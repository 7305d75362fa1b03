"""``roseplay plan``: how many GPUs and which settings a load needs, found by simulating it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from roseplay.arguments import Parser, add_field_flags, exit_code, given_fields, within
from roseplay.config import EngineConfig
from roseplay.extras.simulation.calibrated import find_hardware
from roseplay.extras.simulation.gpus import GPU, SimulationError, gpus
from roseplay.extras.simulation.model_shape import WEIGHT_BYTES, ModelShape
from roseplay.extras.simulation.models import find_shape
from roseplay.extras.simulation.outcome import SimulatedRequest
from roseplay.extras.simulation.plan import text
from roseplay.extras.simulation.plan.launch import commands
from roseplay.extras.simulation.plan.limits import Limits
from roseplay.extras.simulation.plan.load import read_load, uniform_load
from roseplay.extras.simulation.plan.search import SIZES, Tried, best, search

_SETTINGS = ("block_size", "gpu_memory_utilization", "num_blocks", "kv_cache_memory", "max_model_len")
_FOR_EACH = 4  # requests for each client at least
_REQUESTS, _CLIENTS, _TOKENS = within(1, 20_000), within(1, 5_000), within(1, 10**6)
_RATE, _GPUS = within(1e-4, 1e9), within(1, SIZES[-1])
_ROUND_TO = 1024  # tokens, to which the longest request is rounded up


def main(argv: Sequence[str] | None = None) -> int:
    """Plan a deployment. Returns 0 if a setting holds the limits, 1 if none does, 2 for invalid arguments."""
    options = _parser().parse_args(argv)
    return exit_code("roseplay plan", lambda: _plan(options))


def _plan(options: argparse.Namespace) -> int:
    (gpu, calibration), limits = find_hardware(options.gpu), Limits(options.ttft_p95, options.itl_p95)
    shape = stored = find_shape(options.model, options.weights, options.kv)
    with suppress(SimulationError):  # weights of an unknown format can be replaced
        stored = find_shape(options.model)
    load = _load(options, shape)
    config = replace(_config(options, shape, load), run_as=gpu.name if calibration is None else options.gpu)
    size = options.tensor_parallel_size
    sizes = [size] if size else [n for n in SIZES if n <= options.max_gpus]
    begin = time.perf_counter()
    tried, left_out = search(shape, gpu, load, limits, config, sizes, calibration, options.concurrency)
    took_s, chosen = time.perf_counter() - begin, best(tried, limits)
    span_s = load[-1].at_s - load[0].at_s
    rate = None if options.concurrency else options.rate or ((len(load) - 1) / span_s if span_s else len(load))
    demand = f"{options.concurrency} clients" if rate is None else f"{rate:.3g} requests/s"
    lines = [text.sentence(chosen, shape, gpu, limits, demand), *text.warnings(chosen, shape, gpu, left_out)]
    if options.json:
        about = {"rate_per_s": rate, "concurrency": options.concurrency, "said": lines[0], "warnings": lines[1:]}
        print(json.dumps(_document(tried, chosen, shape, gpu, limits, about)))
    elif chosen.holds(limits):
        print("\n".join([*text.table(tried, limits), "", *lines]))
        print("\n".join(commands(chosen, options.model, shape, stored, config, _bench(options, len(load)))))
        print("\n".join([*text.trust(chosen, shape, gpu), text.speed(tried, took_s)]))
    for line in () if chosen.holds(limits) else lines:
        print(f"roseplay plan: {line}", file=sys.stderr)
    return 0 if chosen.holds(limits) else 1


def _bench(options: argparse.Namespace, count: int) -> dict[str, object]:
    """Returns the flags with which ``vllm bench serve`` sends this load; none for a file's."""
    if options.trace is not None:
        return {}
    sizes = {"random-input-len": options.prompt_tokens, "random-output-len": options.answer_tokens}
    pace = {"max-concurrency": options.concurrency} if options.concurrency else {"request-rate": f"{options.rate:g}"}
    seed = round(1000 * (options.concurrency or options.rate))  # else the prompts of all loads are the same, and cached
    return {**sizes, "num-prompts": count, **pace, "seed": seed}


def _load(options: argparse.Namespace, shape: ModelShape) -> list[SimulatedRequest]:
    clients = options.concurrency
    if clients is not None and options.rate is not None:
        raise ValueError("clients send when they are answered, and not at a rate: use --concurrency or --rate")
    if options.trace is not None:
        return read_load(options.trace, options.rate, shape.vocab)
    if options.rate is None and clients is None:
        raise ValueError("give --rate, --concurrency, or --trace with a file whose requests have arrival times")
    sizes = (options.prompt_tokens, options.answer_tokens)
    _check_length(sum(sizes), shape)
    return uniform_load(max(options.requests, _FOR_EACH * (clients or 0)), options.rate, *sizes, shape.vocab)


def _config(options: argparse.Namespace, shape: ModelShape, load: Sequence[SimulatedRequest]) -> EngineConfig:
    """Returns the engine's settings; requests are as long as the longest of the load, unless that was given."""
    settings = given_fields(EngineConfig, vars(options))
    longest = max(len(request.token_ids) + request.answer_tokens for request in load)
    _check_length(longest, shape)
    settings.setdefault("max_model_len", min(shape.max_len, -(-longest // _ROUND_TO) * _ROUND_TO))
    return EngineConfig(**{name: value for name, value in settings.items() if name in _SETTINGS})


def _check_length(longest: int, shape: ModelShape) -> None:
    if longest > shape.max_len:
        raise ValueError(f"the longest request has {longest:,} tokens, but {shape.name} allows {shape.max_len:,}")


def _document(
    tried: Sequence[Tried], chosen: Tried, shape: ModelShape, gpu: GPU, limits: Limits, about: dict[str, object]
) -> dict[str, object]:
    def row(one: Tried) -> dict[str, object]:
        return {**asdict(one), "evidence": str(one.evidence), "holds": one.holds(limits)}

    deployment = {"model": shape.name, "weights": shape.weights, "kv": shape.kv, "gpu": gpu.name}
    results = {"best": row(chosen), "tried": [*map(row, tried)]}
    return {"simulated": True, **deployment, "limits": asdict(limits), **about, **results}


def _parser() -> Parser:
    parser = Parser(
        prog="roseplay plan",
        description="Simulate a load on GPUs that are not here, with this engine's scheduler, and name the settings that "
        "hold the limits with the fewest of them. All times are estimates; the output says how far they can be trusted.",
    )
    parser.add_argument(
        "--gpu", required=True, metavar="GPU", help=f"one of {', '.join(gpus())}, or a file of roseplay calibrate"
    )
    parser.add_argument("--model", required=True, help="a bundled shape, a config.json, its directory, or a hub id")
    for name in ("ttft", "itl"):
        parser.add_argument(f"--{name}-p95", type=float, metavar="MS", help=f"limit of {name.upper()} p95")
    group = parser.add_argument_group("load")
    group.add_argument("--rate", type=_RATE, metavar="REQUESTS", help="requests/s (default: the file's own)")
    group.add_argument("--concurrency", type=_CLIENTS, metavar="N", help="clients that each send again when answered")
    group.add_argument("--trace", type=Path, metavar="FILE", help="requests as JSONL, CSV, or conversations")
    for name, kind, number in (
        ("requests", _REQUESTS, 300),
        ("prompt-tokens", _TOKENS, 1024),
        ("answer-tokens", _TOKENS, 256),
    ):
        words = f"without a file (default: {number})"
        group.add_argument(f"--{name}", type=kind, default=number, metavar="N", help=words)
    group = parser.add_argument_group("deployment")
    group.add_argument("--max-gpus", type=_GPUS, default=8, metavar="N", help="the most GPUs to use (default: 8)")
    group.add_argument("--tensor-parallel-size", type=within(1, 64), metavar="N", help="try this number of GPUs only")
    group.add_argument("--weights", choices=list(WEIGHT_BYTES), help="format of the weights (default: the config's)")
    group.add_argument("--kv", choices=["bf16", "fp8"], help="format of the KV cache (default: the config's)")
    add_field_flags(group, EngineConfig, only=_SETTINGS)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser
