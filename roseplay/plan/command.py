"""``roseplay plan``: how many GPUs and which settings a load needs, found by simulating it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roseplay.arguments import Parser, add_field_flags, exit_code, given_fields
from roseplay.config import EngineConfig
from roseplay.plan import text
from roseplay.plan.load import read_load, uniform_load
from roseplay.plan.search import SIZES, Tried, best, search
from roseplay.plan.slo import SLO
from roseplay.sim.calibrated import find_hardware
from roseplay.sim.gpus import GPU, gpus
from roseplay.sim.model_shape import WEIGHT_BYTES, ModelShape
from roseplay.sim.models import find_shape
from roseplay.sim.outcome import SimulatedRequest

_SETTINGS = ("block_size", "gpu_memory_utilization", "num_blocks", "kv_cache_memory", "max_model_len")
_ROUND_TO = 1024  # tokens, to which the longest request is rounded up


def main(argv: Sequence[str] | None = None) -> int:
    """Plan a deployment. Returns 0 if a setting holds the limits, 1 if none does, 2 for invalid arguments."""
    options = _parser().parse_args(argv)
    return exit_code("roseplay plan", lambda: _plan(options))


def _plan(options: argparse.Namespace) -> int:
    (gpu, own), slo = find_hardware(options.gpu), SLO.parse(options.slo)
    shape = find_shape(options.model, options.weights, options.kv)
    load = _load(options, shape)
    config = _config(options, shape, load)
    sizes = (
        [options.tensor_parallel_size] if options.tensor_parallel_size else [n for n in SIZES if n <= options.max_gpus]
    )
    begin = time.perf_counter()
    tried = list(search(shape, gpu, load, slo, config, sizes, own))
    took_s = time.perf_counter() - begin
    chosen = best(tried, slo)
    span_s = load[-1].at_s - load[0].at_s
    rate = options.rate or ((len(load) - 1) / span_s if span_s else len(load))
    said = text.sentence(chosen, shape, gpu, slo, rate)
    if options.json:
        print(json.dumps(_document(tried, chosen, said, shape, gpu, slo, rate)))
    elif chosen.holds(slo):
        print("\n".join([*text.table(tried, slo), "", said]))
        print("\n".join(text.flags(chosen, options.model, config.max_model_len or shape.max_len)))
        print("\n".join(text.trust(chosen, shape, gpu)))
        print(_speed(tried, took_s))
    if not chosen.holds(slo):
        print(f"roseplay plan: {said}", file=sys.stderr)
        return 1
    return 0


def _load(options: argparse.Namespace, shape: ModelShape) -> list[SimulatedRequest]:
    if options.rate is not None and not 0 < options.rate < float("inf"):
        raise ValueError(f"the rate is {options.rate:g}: use requests/s, above 0")
    if options.trace is not None:
        return read_load(options.trace, options.rate, shape.vocab)
    if options.rate is None:
        raise ValueError("give --rate, or --trace with a file whose requests have arrival times")
    for name in ("requests", "prompt_tokens", "answer_tokens"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}: use at least 1")
    sizes = (options.prompt_tokens, options.answer_tokens)
    _check_length(sum(sizes), shape)
    return uniform_load(options.requests, options.rate, *sizes, shape.vocab)


def _config(options: argparse.Namespace, shape: ModelShape, load: Sequence[SimulatedRequest]) -> EngineConfig:
    """Returns the engine's settings; requests are as long as the longest of the load, unless that was given."""
    given = given_fields(EngineConfig, vars(options))
    longest = max(len(one.token_ids) + one.answer_tokens for one in load)
    _check_length(longest, shape)
    given.setdefault("max_model_len", min(shape.max_len, -(-longest // _ROUND_TO) * _ROUND_TO))
    return EngineConfig(**{name: value for name, value in given.items() if name in _SETTINGS})


def _check_length(longest: int, shape: ModelShape) -> None:
    if longest > shape.max_len:
        raise ValueError(f"the longest request has {longest:,} tokens, but {shape.name} allows {shape.max_len:,}")


def _speed(tried: Sequence[Tried], took_s: float) -> str:
    steps, seconds = sum(one.steps for one in tried), sum(one.seconds for one in tried)
    return (
        f"{len(tried)} simulations of {seconds:,.0f} s in {took_s:.1f} s: {seconds / took_s:,.0f} times real time,"
        f" {steps / took_s:,.0f} steps/s."
    )


def _document(
    tried: Sequence[Tried], chosen: Tried, said: str, shape: ModelShape, gpu: GPU, slo: SLO, rate: float
) -> dict[str, Any]:
    def row(one: Tried) -> dict[str, Any]:
        return {**asdict(one), "evidence": str(one.evidence), "holds": one.holds(slo)}

    about = {"simulated": True, "model": shape.name, "weights": shape.weights, "kv": shape.kv, "gpu": gpu.name}
    return {
        **about,
        "slo": asdict(slo),
        "rate_per_s": rate,
        "said": said,
        "best": row(chosen),
        "tried": [*map(row, tried)],
    }


def _parser() -> Parser:
    parser = Parser(
        prog="roseplay plan",
        description="Simulate a load on GPUs that are not here, with this engine's scheduler, and name the settings that "
        "hold the limits with the fewest of them. All times are estimates; the output says how far they can be trusted.",
    )
    parser.add_argument(
        "--gpu", required=True, metavar="GPU", help=f"one of {', '.join(gpus())}, or a file of roseplay calibrate"
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME_OR_CONFIG",
        help="a bundled shape, a config.json, a directory, or a hub id",
    )
    parser.add_argument(
        "--slo", required=True, metavar="LIMITS", help="limits of p95: ttft=500ms,itl=50ms, or one of them"
    )
    group = parser.add_argument_group("load")
    group.add_argument("--rate", type=float, metavar="REQUESTS", help="requests/s (default: the file's own)")
    group.add_argument("--trace", type=Path, metavar="FILE", help="requests as JSONL, CSV, or conversations")
    group.add_argument("--requests", type=int, default=300, metavar="N", help="without a file (default: 300)")
    group.add_argument("--prompt-tokens", type=int, default=1024, metavar="N", help="without a file (default: 1024)")
    group.add_argument("--answer-tokens", type=int, default=256, metavar="N", help="without a file (default: 256)")
    group = parser.add_argument_group("deployment")
    group.add_argument("--max-gpus", type=int, default=8, metavar="N", help="the most GPUs to use (default: 8)")
    group.add_argument("--tensor-parallel-size", type=int, metavar="N", help="try this number of GPUs only")
    group.add_argument("--weights", choices=list(WEIGHT_BYTES), help="format of the weights (default: the config's)")
    group.add_argument("--kv", choices=["bf16", "fp8"], help="format of the KV cache (default: the config's)")
    add_field_flags(group, EngineConfig, only=_SETTINGS)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser
