"""``roseplay calibrate``: fits simulated hardware to measurements of a deployment, and says how far off it is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from roseplay.arguments import Parser, exit_code, list_of_integers, within
from roseplay.engine.errors import EngineError
from roseplay.extras.servers.address import key_of, key_variable
from roseplay.extras.servers.engine import HttpEngine
from roseplay.extras.simulation.calibrate.result_files import FORMATS, read_results
from roseplay.extras.simulation.calibrate.server_points import LEAST_ANSWER, loads, measure_server
from roseplay.extras.simulation.calibrated import SUFFIX, Calibration
from roseplay.extras.simulation.cost import CostModel
from roseplay.extras.simulation.gpus import GPU, find_gpu, gpus
from roseplay.extras.simulation.hardware import simulated_shape
from roseplay.extras.simulation.model_shape import WEIGHT_BYTES
from roseplay.extras.simulation.points import Measurement
from roseplay.formats.numbers import percent_text
from roseplay.traffic.environment import environment

CPU = "cpu"
_MOST = 10**6  # tokens or seconds
_MATRIX = 384  # rows and columns of the product whose rate is taken


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrate. Returns 0, 1 if a server cannot be measured, 2 for invalid arguments or results."""
    options = _parser().parse_args(argv)
    return exit_code("roseplay calibrate", lambda: _run(options), EngineError)


def _run(options: argparse.Namespace) -> int:
    _check(options)
    calibration = _calibrate(options)
    print("\n".join(_table(calibration)))
    calibration.write(options.out)
    print(f"Written: roseplay play --run-as {options.out} --model {options.model or calibration.model}")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Check before anything is measured what can be; raises ``ValueError``."""
    if not options.results and options.url is None:
        raise ValueError(f"give result files ({FORMATS}), or --url of a server to measure")
    if options.model is None and options.url is None:
        raise ValueError("give --model: the model that was measured")
    if options.out.suffix != SUFFIX or not options.out.absolute().parent.is_dir():
        raise ValueError(f"--out is {options.out}: use a file name that ends with {SUFFIX}, in a directory that exists")


def _calibrate(options: argparse.Namespace) -> Calibration:
    gpu = _hardware(options.gpu)
    cost = None if options.model is None else _cost(options, options.model, gpu)  # refuses a bad model first
    points, left_out = read_results(options.results)
    for line in left_out:
        print(f"roseplay calibrate: {line}", file=sys.stderr)
    if options.url is not None:
        with HttpEngine(options.url, api_key=key_of(vars(options), "--url-api-key")) as engine:
            root, served = engine.server.root, engine.model
            if root and (not Path(root).is_absolute() or Path(root).exists()):  # else a directory of another machine
                served = root
            cost = cost or _cost(options, served, gpu)
            points += _measured(engine, options)
    assert cost is not None
    return Calibration.of(cost, points)


def _hardware(name: str) -> GPU:
    """Returns a GPU, or this machine's CPU with its measured bandwidth and rate of matrix products."""
    if name.strip().lower() != CPU:
        return find_gpu(name)
    from roseplay.model.ceilings import matmul_flops, read_bandwidth  # imports torch

    about = environment(threads=0, device="cpu")
    flops = max(matmul_flops("cpu", _MATRIX, dtype) for dtype in ("float32", "bfloat16"))
    return GPU(
        name=CPU,
        title=f"{about['cpu']}, {about['cores']} cores",
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        bandwidth_tb_s=read_bandwidth("cpu") / 1e12,
        bf16_tflops=flops / 1e12,
        cpu=True,
        source="measured on this machine",
    )


def _cost(options: argparse.Namespace, model: str, gpu: GPU) -> CostModel:
    return CostModel(simulated_shape(model, options.weights, options.kv), gpu, options.tensor_parallel_size)


def _measured(engine: HttpEngine, options: argparse.Namespace) -> Iterator[Measurement]:
    asked = loads(options.clients, options.prompt_tokens, options.long_prompt_tokens, options.answer_tokens)
    for point in measure_server(engine, asked, options.time_limit_s):
        print(
            f"{point.streams} clients, {point.prompt} + {point.answer} tokens: ITL p50 {point.seconds * 1e3:.2f} ms,"
            f" TTFT p50 {(point.ttft_s or 0) * 1e3:.0f} ms",
            file=sys.stderr,
        )
        yield point


def _table(found: Calibration) -> Iterator[str]:
    """Yields a line for each point, and the error at points that were held out."""
    yield "streams  prompt + answer  measured      predicted from the others"
    for point, predicted_s in zip(found.points, found.predicted_s, strict=True):
        lengths = f"{point.prompt} + {point.answer}"
        off = predicted_s / point.seconds - 1
        yield f"{point.streams:>7}  {lengths:>15}  {point.seconds * 1e3:>8.2f} ms  {predicted_s * 1e3:>9.2f} ms  {off:+.1%}"
    kind = {"itl": "ITL p50", "tpot": "TPOT"}
    measured = " and ".join(sorted({kind[point.measured] for point in found.points}))
    yield (
        f"{measured} of {len(found.points)} points of {found.measured}, each held out in turn: error {found.errors},"
        f" {percent_text(100 * found.errors.within_20, 0)} within {percent_text(20)}."
    )


def _parser() -> Parser:
    parser = Parser(
        prog="roseplay calibrate",
        description="Fit the durations of simulated steps to measurements of one deployment: of result files, of a running"
        " server, or of both. At least three different loads are needed, for example 1, 16 and 64 streams. The file that"
        " it writes is what --run-as of play and serve, and --gpu of roseplay plan, take in place of a GPU's name.",
    )
    parser.add_argument("results", nargs="*", type=Path, metavar="FILE", help=FORMATS)
    group = parser.add_argument_group("deployment that was measured")
    group.add_argument(
        "--gpu", required=True, metavar="GPU", help=f"{CPU} (this machine's), or one of {', '.join(gpus())}"
    )
    group.add_argument(
        "--model",
        metavar="NAME_OR_CONFIG",
        help="a bundled shape, a config.json, a directory, or a hub id (default: what the server says it serves)",
    )
    group.add_argument("--weights", choices=list(WEIGHT_BYTES), help="format of the weights (default: the config's)")
    group.add_argument("--kv", choices=["bf16", "fp8"], help="format of the KV cache (default: the config's)")
    group.add_argument(
        "--tensor-parallel-size", type=within(1, _MOST), default=1, metavar="N", help="number of GPUs (default: 1)"
    )
    group = parser.add_argument_group("measuring a server")
    group.add_argument("--url", metavar="URL", help="a server with OpenAI's API, such as http://host:8000/v1")
    group.add_argument(
        "--url-api-key", metavar="KEY", help=f"the server's key (or set {key_variable('--url-api-key')})"
    )
    group.add_argument(
        "--clients",
        type=list_of_integers,
        default=[1, 8, 32],
        metavar="N,N,...",
        help="requests at once (default: 1,8,32); the least and the middle number are measured with long prompts as well",
    )
    for name, least, tokens, of in (
        ("prompt", 1, 256, "about"),
        ("long-prompt", 1, 1024, "about"),
        ("answer", LEAST_ANSWER, 64, "of each request"),
    ):
        group.add_argument(
            f"--{name}-tokens", type=within(least, _MOST), default=tokens, metavar="N", help=f"{of} (default: {tokens})"
        )
    group.add_argument(
        "--time-limit-s", type=within(1.0, _MOST), default=120.0, metavar="S", help="for each load (default: 120)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("calibration.json"), metavar="FILE", help="(default: calibration.json)"
    )
    return parser
