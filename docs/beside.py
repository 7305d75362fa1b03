"""Measures roseplay beside llama.cpp and vLLM on this machine, in turn, and prints the tables of docs/performance.md:

    python docs/beside.py --gguf SmolLM2-Q4_0.gguf --llama llama.cpp/build/bin --checkpoint DIR --vllm vllm-venv/bin/vllm

All compute with the same number of threads. *Bare* are their own programs without a server: ``roseplay bench decode`` and
``llama-batched-bench``. *Through the API* each has a server, all of which are up all the time, and ``vllm bench serve`` is
the client of them all. llama.cpp and roseplay read the same GGUF file; vLLM and roseplay the same bfloat16 checkpoint.
Takes about half a minute for each round and size. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from roseplay.extras.bench.server_process import ROSEPLAY, ServerProcess

PROMPT, ANSWER = 128, 64  # tokens
PROMPTS = (128, 512, 2000)  # lengths of single prompts
REQUESTS = {1: 8, 8: 32, 32: 32}  # sent at so many streams; of 96 at 32, some to llama.cpp failed
ATTEMPTS = 4
Samples = dict[tuple[str, ...], list[float]]  # by a table's name, its row and its column


# -- bare


def decode(options: argparse.Namespace, *sizes: str) -> list[dict[str, Any]]:
    """Returns the figures of each combination of sizes."""
    shared = ["--model", str(options.gguf), "--threads", str(options.threads)]
    with tempfile.NamedTemporaryFile() as file:
        command = [*ROSEPLAY, "bench", "decode", *shared, *sizes, "--json", file.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return list(json.load(file)["cells"])


def bare_roseplay(options: argparse.Namespace, samples: Samples) -> None:
    for cell in decode(options, "--batch-size", ",".join(map(str, REQUESTS)), "--context", str(PROMPT)):
        samples["bare", "roseplay", f"{cell['batch']}"].append(cell["output_tokens_per_s"])
    runs = ["--max-new-tokens", "8", "--warmup-runs", "6", "--repeat-runs", "5"]  # a size is recorded after four of it
    for cell in decode(options, "--batch-size", "1", "--context", ",".join(map(str, PROMPTS)), *runs):
        samples["bare", "roseplay", f"prompt of {cell['context']}"].append(cell["prefill_tokens_per_s"])


def bare_llama(options: argparse.Namespace, samples: Samples) -> None:
    program, threads = str(options.llama / "llama-batched-bench"), str(options.threads)
    for prompts, streams in (((PROMPT,), tuple(REQUESTS)), (PROMPTS, (1,))):
        sizes = ["-npp", ",".join(map(str, prompts)), "-ntg", str(ANSWER), "-npl", ",".join(map(str, streams))]
        command = [program, "-m", str(options.gguf), "-t", threads, "-tb", threads, "-c", "16384", "-b", "2048"]
        shown = subprocess.run(
            [*command, *sizes, "--output-format", "jsonl"], check=True, capture_output=True, text=True
        ).stdout
        for line in re.findall(r"^\{.*\}$", shown, re.MULTILINE):
            row = json.loads(line)
            if streams == (1,):
                samples["bare", "llama.cpp", f"prompt of {row['pp']}"].append(row["speed_pp"])
            else:
                samples["bare", "llama.cpp", f"{row['pl']}"].append(row["speed_tg"])


# -- through the API


def servers(options: argparse.Namespace) -> Iterator[tuple[str, ServerProcess]]:
    """Starts each server, and yields it with its name once it answers."""
    threads, most = str(options.threads), str(max(REQUESTS))
    served = ["--threads", threads, "--num-blocks", "1025", "--max-batch-size", most]
    if options.llama:
        context = str(max(REQUESTS) * 512)  # texts of random tokens may be read as more of them
        sizes = ["-t", threads, "-tb", threads, "-np", most, "-c", context, "--no-webui"]
        program = [str(options.llama / "llama-server"), "-m", str(options.gguf)]
        yield "llama.cpp, Q4_0", ServerProcess(program, sizes)
        yield "roseplay, Q4_0", ServerProcess([*ROSEPLAY, "serve"], ["--model", str(options.gguf), *served])
    sizes = ["--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", most]
    yield "vLLM, bfloat16", ServerProcess([str(options.vllm), "serve", str(options.checkpoint)], sizes)
    yield "roseplay, bfloat16", ServerProcess([*ROSEPLAY, "serve"], ["--model", str(options.checkpoint), *served])


def load(options: argparse.Namespace, server: ServerProcess, streams: int, requests: int) -> dict[str, Any]:
    """Sends prompts that no server has seen; returns the client's figures, of a run in which no request failed."""
    for _ in range(ATTEMPTS):
        figures = try_load(options, server, streams, requests)
        if figures["completed"] == requests:
            return figures
        told = [error[-500:] for error in figures.get("errors", []) if error]
        print(f"{server.address} answered {figures['completed']} of {requests} requests, again: {told}", flush=True)
    raise RuntimeError(f"{server.address} did not answer all of {requests} requests in {ATTEMPTS} runs")


def try_load(options: argparse.Namespace, server: ServerProcess, streams: int, requests: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        random_prompts = ["--dataset-name", "random", "--seed", str(random.randrange(2**31))]
        sizes = ["--random-input-len", str(PROMPT), "--random-output-len", str(ANSWER), "--ignore-eos"]
        work = ["--num-prompts", str(requests), "--max-concurrency", str(streams)]
        model = server.http.get("/v1/models").json()["data"][0]["id"]
        names = ["--model", model, "--tokenizer", str(options.checkpoint)]
        saved = ["--save-result", "--result-dir", folder, "--result-filename", "figures.json"]
        command = [
            str(options.vllm),
            "bench",
            "serve",
            "--base-url",
            server.address,
            *names,
            *random_prompts,
            *sizes,
            *work,
        ]
        subprocess.run([*command, *saved], check=True, capture_output=True)
        return dict(json.loads((Path(folder) / "figures.json").read_text()))


def through_apis(options: argparse.Namespace, samples: Samples) -> None:
    with ExitStack() as stack:
        served = {name: stack.enter_context(server) for name, server in servers(options)}
        for server in served.values():
            load(options, server, max(REQUESTS), max(REQUESTS))
        for turn in range(options.rounds):
            for streams, requests in REQUESTS.items():
                for name, server in sorted(served.items(), key=lambda one: one[0], reverse=bool(turn % 2)):
                    figures = load(options, server, streams, requests)
                    samples["tokens/s", name, f"{streams}"].append(figures["output_throughput"])
                    samples["TPOT p50, ms", name, f"{streams}"].append(figures["median_tpot_ms"])
                    samples["TTFT p50, ms", name, f"{streams}"].append(figures["median_ttft_ms"])
                    print(
                        f"round {turn + 1}, {streams} streams, {name}: {figures['output_throughput']:.0f} tokens/s",
                        flush=True,
                    )


# -- tables


def number(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def table(samples: Samples, title: str) -> str:
    """Returns the medians, with the lowest and the highest, of what was measured under this title."""
    rows = list(dict.fromkeys(row for name, row, _ in samples if name == title))
    columns = list(dict.fromkeys(column for name, _, column in samples if name == title))
    lines = [f"| {title} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for row in rows:
        found = [samples[title, row, column] for column in columns]
        cells = [f"{number(statistics.median(all_))} ({number(min(all_))}–{number(max(all_))})" for all_ in found]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def processor() -> str:
    facts = dict(
        re.findall(r"^(model name|cpu family|model)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    )
    return f"{facts['model name']}, family {facts['cpu family']} model {facts['model']}"


def print_tables(samples: Samples) -> None:
    print("\n\n".join(table(samples, title) for title in dict.fromkeys(name for name, _, _ in samples)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True, help="the model as Q4_0, which llama.cpp repacks")
    parser.add_argument(
        "--llama", type=Path, help="folder of llama-server and llama-batched-bench, built for this machine"
    )
    parser.add_argument("--checkpoint", type=Path, help="the same model in bfloat16, with its tokenizer")
    parser.add_argument("--vllm", type=Path, help="vLLM's program: a server, and the client of all servers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.vllm and not options.checkpoint:
        parser.error("--vllm needs --checkpoint, which vLLM serves and whose tokenizer the client has")
    print(f"{processor()}; {options.threads} threads, {options.rounds} rounds in turn; medians (lowest–highest)\n")
    bare: Samples = defaultdict(list)
    for _ in range(options.rounds if options.llama else 0):
        bare_llama(options, bare)
        bare_roseplay(options, bare)
    print_tables(bare)
    if options.vllm:
        served: Samples = defaultdict(list)
        through_apis(options, served)
        print_tables(served)


if __name__ == "__main__":
    main()
