"""``roseplay bench gpu``: whether the engine works on a GPU, and how close it comes to the GPU's limits.

Runs its parts in order, the most informative first, each in a process of its own with a time limit: the device; kernels
compared with plain torch; compute-sanitizer; answers of four families; attention, append, sampling and matrix products
compared with the GPU's own rates; two models at several batch sizes; the kernels of one replayed step; other tiles; the
Lab; traffic, compared with transformers. Shares are of the copy bandwidth or the matrix rate measured in the same
run. Prints each row as it ends and writes the results after every row; a row that fails says why, and the benchmark
continues. Ends with a table in Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from roseplay.bench import flags, gpu_rows
from roseplay.bench.gpu_machine import Figures, Group, Machine, Part, Row, measure
from roseplay.bench.process import Apart
from roseplay.bench.runs import BenchmarkError

Measure = Callable[[Part, Machine, float], Iterator[tuple[str, Figures]]]

STAND_IN = "!!! STAND-IN: this is a CPU that runs a GPU's code on small shapes. No figure below is a GPU's. !!!"
# Shares of the bandwidth or of the matrix rate that rows should reach.
_ONE_SMALL, _EIGHT_BILLION, _PREFILL, _ATTENTION = 0.55, 0.7, 0.5, 0.8
_SMALL_PUBLISHED = "serving engines, 0.6 to 1B, one stream: 12 to 52%; single-kernel decoders 67 to 78%"
_BATCHES = (1, 32, 256)
# Imported once, by the server whose forks measure the parts.
_LIBRARIES = ["torch", "transformers", "roseplay.kernels", "roseplay.bench.gpu"]


def parts() -> list[Part]:
    """Returns all parts, the most informative first, so that a run that is cut short loses the least."""
    from roseplay.bench import gpu_checks, gpu_kernels, gpu_steps, gpu_tiles  # these load torch

    small, large = "qwen3-0.6b", "qwen3-8b"
    goals = {(small, 1): (_ONE_SMALL, _SMALL_PUBLISHED)}
    goals |= {(large, batch): (_EIGHT_BILLION, "vLLM 0.30 on an H100: 66 to 67%") for batch in (1, 32)}
    decodes = {
        shape: [
            Row(f"{shape} batch {batch}", partial(gpu_rows.decode, batch, 1024), *goals.get((shape, batch), ()))
            for batch in _BATCHES
        ]
        for shape in (small, large)
    }
    prefill = Row(f"{large} prefill 8k", gpu_rows.long_prompt, _PREFILL)
    rates = [
        Row("attention", gpu_kernels.attention, _ATTENTION),
        Row("sampler", gpu_kernels.sampler),
        Row("matrices", gpu_kernels.matrices),
    ]
    traffic = [Row("gpt2 128 x 256 in, 64 out", gpu_rows.burst_of_prompts)]
    half = {"dtype": "float16", "max_model_len": 1024}
    contest = Group([Row("gpt2 64 x 512", gpu_rows.against_generate_batch)])
    starts = {shape: _each("{} start", gpu_steps.start, [shape]) for shape in (small, large)}
    of_8b, mixed, prompt = gpu_kernels.DECODES[0], gpu_kernels.DECODES[-1], gpu_kernels.PREFILLS[0]
    kernels = (of_8b, gpu_kernels.DECODES[2], mixed, *gpu_kernels.PREFILLS[:2])
    return [
        Part("device", 120, [Group([Row("device", gpu_checks.device)])]),
        Part("kernels", 240, [_each("kernels, {.name}", gpu_checks.against_torch, kernels)]),
        Part("sanitizer", 320, [Group([Row("compute-sanitizer", gpu_checks.sanitized)])]),
        Part("answers", 240, [_each("answers, {}", gpu_checks.greedy_answers, gpu_checks.FAMILIES)]),
        Part("rates", 180, [Group(rates)]),
        Part(small, 240, [starts[small], Group(decodes[small], small)]),
        Part(large, 420, [starts[large], Group([*decodes[large], prefill], large, {"max_model_len": 9216})]),
        Part("replay", 180, [_each("{} replay", gpu_steps.replay, (small, large))]),
        Part("tiles", 180, [_each("tiles, {.name}", gpu_tiles.tiles, (of_8b, mixed, prompt))]),
        Part("lab", 240, [Group([Row("lab", gpu_rows.lab)])]),
        Part("traffic", 240, [Group(traffic, "gpt2-124m", half), contest]),
    ]


def _each(title: str, measure: Callable[..., Figures], subjects: Iterable[Any]) -> Group:
    """Returns a row for each subject, which is the measurement's first argument."""
    return Group([Row(title.format(subject), partial(measure, subject)) for subject in subjects])


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add(parser, "--device", "cuda", "cuda, cuda:N, or cpu together with --tiny", type=str)
    parser.add_argument(
        "--tiny", action="store_true", help="use a small model and few tokens, to test that everything runs"
    )
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="parts whose name contains one of these, comma-separated"
    )
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="measure in this process, without limits: for a debugger or a profiler",
    )
    flags.add(parser, "--repeat-runs", 1, "runs of each setting, in turn")
    flags.add(parser, "--time-limit-s", 1700.0, "end after this many seconds, for a GPU rented by the minute")
    flags.add_json_flag(parser, Path("gpu.json"))


def run(args: argparse.Namespace) -> Figures:
    """Measure, print and return everything. Raises ``BenchmarkError`` if something is wrong, once all is measured."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.device == "cpu":  # before Triton is loaded
        os.environ.setdefault("TRITON_INTERPRET", "1")
    _require_gpu(args)
    return run_parts(args, parts(), _in_this_process if args.one_process else measure_apart)


def measure_apart(part: Part, machine: Machine, limit_s: float, context: Any = None) -> Iterator[tuple[str, Figures]]:
    """Yields the rows of a part as they end. After ``limit_s`` seconds its processes are ended, and a last row says so.

    Args:
        context: starts the process, as of ``multiprocessing``.
    """
    if (
        context is None and "forkserver" in multiprocessing.get_all_start_methods()
    ):  # loads the libraries once, and uses no GPU
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_LIBRARIES)
    began = time.monotonic()
    with closing(Apart(part.name, limit_s, _rows, part, machine, context=context)) as process:
        try:
            while row := process.receive(began):
                yield row
        except BenchmarkError as error:
            yield part.name, {"error": str(error)}


def _rows(_: Connection | None, part: Part, machine: Machine) -> Iterator[tuple[str, Figures]]:
    with emulated(machine):
        yield from measure(part, machine)


def emulated(machine: Machine) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which a machine without a GPU runs steps as one with a GPU does."""
    if machine.on_gpu:
        return contextlib.nullcontext()
    from roseplay.kernels.cuda.emulation import emulate_gpu

    return emulate_gpu()


def run_parts(args: argparse.Namespace, parts: list[Part], measure: Measure) -> Figures:
    """Measure these parts, the first of which is the device; see ``run``."""
    began = time.monotonic()
    words = [word for word in args.only.split(",") if word] or [""]
    document: Figures = {"stand_in": args.device == "cpu", "tiny": args.tiny, "parts": {}, "rows": {}}
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(args.device, args.tiny, Path(folder), repeats=1 if args.tiny else args.repeat_runs)
        for part in parts:
            if part is not parts[0] and not any(word in part.name for word in words):
                continue
            begin, left = time.monotonic(), args.time_limit_s - (time.monotonic() - began)
            if left <= 0 and part is not parts[0]:
                document["parts"][part.name] = {"skipped": "the time was up"}
                print(f"-- {part.name}: skipped, the time was up", flush=True)
                continue
            limit_s = min(part.limit_s, left) if left > 0 else part.limit_s
            for name, found in measure(part, machine, limit_s):
                document["rows"][name] = found
                if part is parts[0]:
                    machine = _measured(machine, found)
                    print(*([STAND_IN] if document["stand_in"] else []), sep="\n", flush=True)
                _print_row(name, found)
                _write(args.json, document)
            took = time.monotonic() - begin
            document["parts"][part.name] = {"seconds": took, "limit_s": limit_s}
            print(f"-- {part.name}: {took:.0f} of {limit_s:.0f} s", flush=True)
    document["seconds"], document["table"] = time.monotonic() - began, table(document)
    _write(args.json, document)
    print("", *([STAND_IN] if document["stand_in"] else []), *document["table"], sep="\n")
    wrong = [name for name, found in document["rows"].items() if found.get("wrong") or "error" in found]
    if wrong:
        raise BenchmarkError(f"wrong or without figures: {', '.join(wrong)}")
    return document


def _in_this_process(part: Part, machine: Machine, limit_s: float) -> Iterator[tuple[str, Figures]]:
    return _rows(None, part, machine)


def _measured(machine: Machine, found: Figures) -> Machine:
    """Returns the machine with the ceilings that the first part has measured. Raises ``BenchmarkError`` without them."""
    if "bandwidth" not in found:
        raise BenchmarkError(f"the device cannot be used: {found.get('error')}")
    return dataclasses.replace(machine, bandwidth=found["bandwidth"], matmul_flops=found["matmul_flops"])


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


def _write(file: Path | None, document: Figures) -> None:
    if file is not None:
        file.write_text(json.dumps(document, indent=2) + "\n")


def _print_row(name: str, found: Figures) -> None:
    first, *more = str(found.get("figure") or found.get("error")).splitlines()
    print(f"{name:<34} {'WRONG: ' if found.get('wrong') else ''}{first}", flush=True)
    for line in more:
        print(f"{'':<34} {line}", flush=True)
    if found.get("no_graphs") and found["no_graphs"] not in first:
        print(f"{'':<34} no graphs: {found['no_graphs']}", flush=True)
    beside = [f"goal {found['goal']:.0%}, {'reached' if found['reached'] else 'missed'}"] if "reached" in found else []
    beside += [found["published"]] if "published" in found and "figure" in found else []
    if beside:
        print(f"{'':<34} {'; '.join(beside)}", flush=True)


def table(document: Figures) -> list[str]:
    """Returns the figures of the decodes as a table in Markdown."""
    device = document["rows"].get("device", {}).get("environment", {})
    name = "a stand-in, no GPU" if document["stand_in"] else device.get("device_name")
    lines = [
        f"| {name} | ms a step | tokens/s | of the copy bandwidth | host gap, ms | replayed | without graphs, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, found in document["rows"].items():
        if "settings" not in found or "floor_ms" not in found:
            continue
        on, off = found["settings"]["all on"], found["settings"]["graphs off"]
        lines.append(
            f"| {row} | {on['step_ms']:.2f} | {on['output_tokens_per_s']:,.0f} | {found['share']:.0%} |"
            f" {on['host_gap_ms']:.2f} | {on['replayed']:.0%} | {off['step_ms']:.2f} |"
        )
    return lines
