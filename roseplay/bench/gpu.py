"""``roseplay bench gpu``: how close the engine comes to the limits of a GPU.

First compares the embedded model's answers with those of plain torch. If they are wrong, nothing is measured, and
``pytest tests/suites/gpu`` in a clone shows where they differ. Then measures a table row by row, each row against the
copy bandwidth or the matrix rate measured in the same run, beside the share that it should reach and shares that others
have published. Results are written after every row; a row that fails says why, and the benchmark continues.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from roseplay.bench import answers, flags, gpu_rows
from roseplay.bench.ceilings import matmul_flops, read_bandwidth
from roseplay.bench.gpu_machine import Group, Machine, Row
from roseplay.bench.runs import BenchmarkError
from roseplay.traffic.environment import environment

_LATE = {"skipped": "the time was up"}
_DTYPES = ("float32", "bfloat16")  # in which answers are checked
# Shares of the bandwidth or of the matrix rate that rows should reach.
_ONE_SMALL, _EIGHT_BILLION, _PREFILL, _ATTENTION = 0.55, 0.7, 0.5, 0.8
_SMALL_PUBLISHED = "serving engines, 0.6 to 1B, one stream: 12 to 52%; single-kernel decoders 67 to 78%"


def groups() -> list[Group]:
    """Returns all rows, the most informative first, so that a run that is cut short loses the least."""
    decode = gpu_rows.decode_row
    return [
        Group([Row("gpt2 64 x 512", gpu_rows.against_generate_batch)]),
        Group(
            [
                decode("qwen3-0.6b batch 1", 1, 1024, _ONE_SMALL, _SMALL_PUBLISHED),
                *(decode(f"qwen3-0.6b batch {batch}", batch, 1024) for batch in (8, 64, 256)),
            ],
            "qwen3-0.6b",
        ),
        Group([decode("llama-3.2-1b batch 1", 1, 128, _ONE_SMALL, _SMALL_PUBLISHED)], "llama-3.2-1b"),
        Group(
            [
                decode("qwen3-8b batch 1", 1, 1024, _EIGHT_BILLION, "vLLM 0.30 on an H100: 66%"),
                decode("qwen3-8b batch 32", 32, 1024, _EIGHT_BILLION, "vLLM 0.30 on an H100: 67%"),
                Row("qwen3-8b prefill 8k", gpu_rows.long_prompt, _PREFILL),
            ],
            "qwen3-8b",
            {"max_model_len": 9216},
        ),
        Group(
            [
                Row("gpt2 128 x 256 in, 64 out", gpu_rows.burst_of_prompts),
                Row("gpt2 steady 512,1,1,1", gpu_rows.steady_arrivals),
            ],
            "gpt2-124m",
            {"dtype": "float16", "max_model_len": 1024},
        ),
        Group([Row("idle while qwen3-0.6b decodes 64", gpu_rows.idle_share)]),
        Group([Row("kernels", gpu_rows.kernels, _ATTENTION)]),
    ]


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add(parser, "--device", "cuda", "cuda, cuda:N, or cpu together with --tiny", type=str)
    parser.add_argument(
        "--tiny", action="store_true", help="use a small model and few tokens, to test that everything runs"
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="rows that contain one of these, comma-separated")
    parser.add_argument("--no-checks", action="store_true", help="measure without checking answers first")
    flags.add(parser, "--repeat-runs", 3, "runs of each setting, in turn")
    flags.add(parser, "--time-limit-s", 540.0, "start no row after this many seconds, for a GPU rented by the minute")
    flags.add_json_flag(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, print and return everything. Raises ``BenchmarkError`` if answers are wrong."""
    _require_gpu(args)
    began = time.monotonic()
    checks = [] if args.no_checks else _checked(args.device)
    document: dict[str, Any] = {
        "environment": environment(threads=0, device=args.device),
        "tiny": args.tiny,
        "checks": [asdict(found) for found in checks],
        "rows": {},
    }
    words = [word for word in args.only.split(",") if word] or [""]
    with _emulated(args.device == "cpu"), tempfile.TemporaryDirectory() as folder:
        bandwidth, flops = read_bandwidth(args.device), matmul_flops(args.device, 256 if args.tiny else 8192)
        machine = Machine(args.device, args.tiny, Path(folder), bandwidth, flops, 1 if args.tiny else args.repeat_runs)
        document["ceilings"] = {"copy_gb_s": bandwidth / 1e9, "matmul_tflops": flops / 1e12}
        print(f"copy {bandwidth / 1e9:,.0f} GB/s, matrix product {flops / 1e12:,.1f} TFLOP/s")
        for group in groups():
            rows = [row for row in group.rows if any(word in row.name for word in words)]
            for row, found in _measure(group, rows, machine, lambda: time.monotonic() - began > args.time_limit_s):
                document["rows"][row.name], document["seconds"] = found, time.monotonic() - began
                _print_row(row, found)
                if args.json is not None:
                    args.json.write_text(json.dumps(document, indent=2) + "\n")
    return document


def _checked(device: str) -> list[answers.Check]:
    """Check the embedded model's answers on a device; raises ``BenchmarkError`` if they are wrong."""
    found = []
    for dtype in _DTYPES:
        found.append(answers.check(device, dtype))
        print(f"answers in {dtype:<23} {found[-1]}", flush=True)
    if not all(check.ok for check in found):
        raise BenchmarkError(
            "answers are wrong, so that nothing is measured: pytest tests/suites/gpu in a clone says where"
        )
    return found


def _require_gpu(args: argparse.Namespace) -> None:
    """Raises ``ValueError`` if nothing can be measured on the device."""
    if args.device == "cpu":
        if not args.tiny:
            raise ValueError("it measures GPUs: on a CPU only --tiny runs, to see that everything does")
        return
    import torch

    if not args.device.startswith("cuda"):
        raise ValueError(f"device is {args.device!r}: use cuda, cuda:N, or cpu with --tiny")
    if not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here (--device cpu --tiny shows that everything runs)")


def _emulated(on: bool) -> contextlib.AbstractContextManager[None]:
    if not on:
        return contextlib.nullcontext()
    from roseplay.kernels.cuda.emulation import emulate_gpu

    return emulate_gpu()


def _measure(
    group: Group, rows: list[Row], machine: Machine, late: Callable[[], bool]
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Yields the rows with their figures, measured on their group's engine, or the reason why there are none."""
    if not rows or late():
        yield from ((row, _LATE) for row in rows)
        return
    about: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        engine = None
        if group.shape is not None:
            try:
                engine = stack.enter_context(machine.engine(group.shape, **group.settings))
            except Exception as error:
                yield from ((row, _error(error)) for row in rows)
                return
            info = engine.info
            about = {"attention": info.attention, "graphs": info.cuda_graphs, "no_graphs": info.no_cuda_graphs}
        for row in rows:
            yield row, {**about, **(_LATE if late() else _judged(row, _attempt(partial(row.measure, machine, engine))))}


def _judged(row: Row, found: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures with the row's goal and with published ones."""
    if row.goal is not None and "share" in found:
        found |= {"goal": row.goal, "reached": found["share"] >= row.goal}
    return {**found, "published": row.published} if row.published else found


def _attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the figures measured, or the error, and the seconds taken."""
    began = time.monotonic()
    try:
        found = measure()
    except Exception as error:
        found = _error(error)
    return {**found, "seconds": time.monotonic() - began}


def _error(error: Exception) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}".split("\n", 1)[0]}


def _print_row(row: Row, found: dict[str, Any]) -> None:
    if found.get("no_graphs") and "figure" in found:
        print(f"{'':<34} no graphs: {found['no_graphs']}", flush=True)
    print(f"{row.name:<34} {found.get('figure') or found.get('error') or found.get('skipped')}", flush=True)
    beside = [f"goal {row.goal:.0%}, {'reached' if found['reached'] else 'missed'}"] if "reached" in found else []
    beside += [row.published] if row.published and "figure" in found else []
    if beside:
        print(f"{'':<34} {'; '.join(beside)}", flush=True)
