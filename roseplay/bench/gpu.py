"""``roseplay bench gpu``: everything that is to be known of a GPU, in one run.

A table, a row at a time, each against the copy bandwidth or the matrix rate measured in the same run. What has been found
is written after every row; a row that fails says why, and the rest goes on. Whether a GPU's answers are right is another
question: ``pytest tests/gpu`` in a clone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from roseplay.bench import flags, gpu_rows
from roseplay.bench.bandwidth import read_bandwidth
from roseplay.bench.gpu_machine import Group, Machine, Row
from roseplay.traffic.environment import environment

KERNELS = "roseplay.bench.gpu_kernels"


def groups() -> list[Group]:
    """All rows, the most telling first: a run that is cut short has lost the least."""
    decode = gpu_rows.decode_row
    return [
        Group([Row("gpt2 64 x 512", gpu_rows.against_generate_batch)]),
        Group([decode(f"qwen3-0.6b batch {batch}", batch, 1024) for batch in (1, 8, 64, 256)], "qwen3-0.6b"),
        Group([decode("llama-3.2-1b batch 1", 1, 128)], "llama-3.2-1b"),
        Group(
            [
                decode("llama-3.1-8b batch 1", 1, 1024),
                decode("llama-3.1-8b batch 32", 32, 1024),
                Row("llama-3.1-8b prefill 8k", gpu_rows.long_prompt),
            ],
            "llama-3.1-8b",
            max_model_len=9216,
        ),
        Group(
            [
                Row("gpt2 128 x 256 in, 64 out", gpu_rows.burst_of_prompts),
                Row("gpt2 steady 512,1,1,1", gpu_rows.steady_arrivals),
            ],
            "gpt2-124m",
            "float16",
            max_model_len=1024,
        ),
        Group([Row("idle while qwen3-0.6b decodes 64", gpu_rows.idle_share)]),
        Group([Row("kernels", measure_kernels)]),
    ]


def add_command(commands: Any) -> None:
    """Register with the parser of ``roseplay bench``."""
    parser = commands.add_parser(
        "gpu", help="a GPU: how near it comes to its limits", description=__doc__.split("\n\n")[1]
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu together with --tiny")
    parser.add_argument(
        "--tiny", action="store_true", help="small models, few tokens: only to see that everything runs"
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="rows whose name holds one of these, with commas")
    parser.add_argument("--no-checks", action="store_true", help=argparse.SUPPRESS)  # there were checks once
    parser.add_argument("--repeat-runs", type=flags.at_least(1), default=3, help="runs of each setting, taken in turn")
    parser.add_argument("--time-limit-s", type=float, default=540.0, help="no row is begun after so many seconds")
    parser.add_argument(
        "--json", type=flags.writable_file, metavar="FILE", help="write what is found there, row by row"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, print and return everything."""
    _require_gpu(args)
    began = time.monotonic()
    document: dict[str, Any] = {
        "environment": environment(threads=0, device=args.device),
        "tiny": args.tiny,
        "rows": {},
    }

    def write() -> None:
        document["seconds"] = time.monotonic() - began
        if args.json is not None:
            args.json.write_text(json.dumps(document, indent=2) + "\n")

    words = [word for word in args.only.split(",") if word]

    def wanted(name: str) -> bool:
        return not words or any(word in name for word in words)

    with _emulated(args.tiny and args.device == "cpu"), tempfile.TemporaryDirectory() as folder:
        machine = _measure_machine(args, Path(folder))
        document["ceilings"] = {
            "copy_gb_s": machine.bandwidth / 1e9,
            "matmul_tflops": machine.matmul_flops / 1e12,
        }
        print(f"copy {machine.bandwidth / 1e9:,.0f} GB/s, matrix product {machine.matmul_flops / 1e12:,.1f} TFLOP/s")
        for group in groups():
            rows = [row for row in group.rows if wanted(row.name)]
            if not rows:
                continue
            for row, found in _measure(group, rows, machine, lambda: time.monotonic() - began > args.time_limit_s):
                document["rows"][row.name] = found
                _print_row(row, found)
                write()
    write()
    return document


def _require_gpu(args: argparse.Namespace) -> None:
    """Raises ``ValueError`` where nothing can be measured."""
    if args.device == "cpu":
        if not args.tiny:
            raise ValueError("it measures GPUs: on a CPU only --tiny runs, to see that everything does")
        return
    import torch

    if not args.device.startswith("cuda"):
        raise ValueError(f"device is {args.device!r}: use cuda, cuda:N, or cpu with --tiny")
    if not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here (--device cpu --tiny shows that everything runs)")


@contextlib.contextmanager
def _emulated(on: bool) -> Iterator[None]:
    if not on:
        yield
        return
    from roseplay.kernels.cuda.emulation import emulate_gpu

    with emulate_gpu():
        yield


def measure_kernels(machine: Machine, engine: None) -> dict[str, Any]:
    """The kernels alone, see ``roseplay.bench.gpu_kernels``."""
    if not machine.device.startswith("cuda"):
        return {"figure": "not measured on a CPU"}
    return dict(_kernels().measure(machine.device, tiny=machine.tiny))


def _kernels() -> Any:
    """Imported when needed: it needs Triton."""
    return importlib.import_module(KERNELS)


def _attempt(what: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it finds, or why it could not."""
    began = time.monotonic()
    try:
        found = what()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}".split("\n", 1)[0]}
    return {**found, "seconds": time.monotonic() - began}


def _measure(
    group: Group, rows: list[Row], machine: Machine, late: Callable[[], bool]
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """The rows of a group, one after the other, on the group's engine."""
    if late():
        yield from ((row, {"skipped": "the time was up"}) for row in rows)
        return
    with contextlib.ExitStack() as stack:
        try:
            engine = group.open(machine)
        except Exception as error:
            yield from ((row, {"error": f"{type(error).__name__}: {error}".split("\n", 1)[0]}) for row in rows)
            return
        about = {}
        if engine is not None:
            stack.enter_context(engine)
            info = engine.info
            about = {"attention": info.attention, "graphs": info.cuda_graphs, "no_graphs": info.no_cuda_graphs}
        for row in rows:
            found = {"skipped": "the time was up"} if late() else _attempt(partial(row.measure, machine, engine))
            yield row, {**about, **found}


def _measure_machine(args: argparse.Namespace, folder: Path) -> Machine:
    return Machine(
        device=args.device,
        tiny=args.tiny,
        folder=folder,
        bandwidth=read_bandwidth(args.device),
        matmul_flops=_matmul_flops(args.device, 256 if args.tiny else 8192),
        repeats=1 if args.tiny else args.repeat_runs,
    )


def _matmul_flops(device: str, size: int) -> float:
    """Operations a second of a square bfloat16 product of random numbers; the median of some."""
    import torch

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    took = []
    for _ in range(10):
        if device.startswith("cuda"):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            torch.mm(a, b)
            end.record()
            end.synchronize()
            took.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            torch.mm(a, b)
            took.append(time.perf_counter() - start)
    return float(2 * size**3 / sorted(took[3:])[len(took[3:]) // 2])


def _print_row(row: Row, found: dict[str, Any]) -> None:
    if "figure" not in found:
        print(f"{row.name:<34} {found.get('error') or found.get('skipped')}", flush=True)
        return
    if found.get("no_graphs"):
        print(f"{'':<34} no graphs: {found['no_graphs']}", flush=True)
    print(f"{row.name:<34} {found['figure']}", flush=True)
