"""``roseplay bench ray``: what replicas on Ray Serve cost, and what routing by prefix saves.

The hop: starts ``roseplay serve`` with one engine and with one replica, in turn, under the same streams. The routing:
sends prompts with shared beginnings (heads) to one engine, to two replicas with half of its KV blocks each, and to two
such replicas that take requests in turn. Everything is measured through the API, by clients on the same machine. Needs
the extra ``ray``, and Linux for processor times.
"""

from __future__ import annotations

import argparse
import random
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from roseplay.bench import flags
from roseplay.bench.page import page_flags
from roseplay.bench.runs import BenchmarkError
from roseplay.bench.served_api import ServedApi

PROMPT_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 8, 12, 4
LEAST_ID, MOST_ID = 10, 2000  # range of token ids that any vocabulary has
AT_A_TIME = 2  # concurrent requests when measuring the routing
RUNNING_BLOCKS = 28  # blocks for running requests, besides the heads


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_engine_flags(parser)
    group = parser.add_argument_group("load")
    flags.add_worker_flag(group, "process")
    group.add_argument("--only", choices=("hop", "routing"), help="measure only this part")
    flags.add(group, "--streams", 32, "concurrent streams, for the hop")
    flags.add(group, "--max-new-tokens", 64, "tokens in each stream")
    flags.add(group, "--heads", 24, "number of heads, for the routing, which uses the default model")
    flags.add(group, "--questions", 3, "prompts with each head")
    flags.add(group, "--head-tokens", 256, "tokens in a head")
    flags.add_run_flags(parser, repeat_runs=3)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the hop and the routing; print and return the medians of the runs, and ratios within them."""
    document: dict[str, Any] = {}
    if args.only != "routing":
        document["hop"] = _hop(args)
    if args.only != "hop":
        document["routing"] = _routing(args)
    return document


# -- the hop


def _hop(args: argparse.Namespace) -> dict[str, Any]:
    arms = {"engine": page_flags(args), "replica": [*page_flags(args), "--ray"]}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    for _ in range(args.repeat_runs):
        for name, given in arms.items():
            with ServedApi(given) as server:
                for _ in range(args.warmup_runs):
                    _streams(server, args)
                runs[name].append(_streams(server, args))
    medians = {
        name: {figure: statistics.median(run[figure] for run in found) for figure in found[0]}
        for name, found in runs.items()
    }
    engine, replica = medians["engine"], medians["replica"]
    ratio = statistics.median(b["tokens_per_s"] / a["tokens_per_s"] for a, b in zip(*runs.values(), strict=True))
    print(f"=== {args.streams} streams of {args.max_new_tokens} tokens, {args.repeat_runs} runs of each, in turn ===")
    for name, found in medians.items():
        print(f"{name}: {found['tokens_per_s']:,.0f} tokens/s, {found['cpu_us']:,.0f} us of CPU a token, ", end="")
        print(f"TTFT p50 {found['ttft_p50_ms']:,.0f} ms")
    print(f"with Ray {ratio:.2f} times as many tokens/s, {replica['cpu_us'] / engine['cpu_us']:.2f} times the CPU time")
    return {**medians, "ratio_tokens_per_s": ratio, "ratio_cpu": replica["cpu_us"] / engine["cpu_us"]}


def _streams(server: ServedApi, args: argparse.Namespace) -> dict[str, float]:
    rng = random.Random()  # so that no prompt is cached from an earlier run
    prompts = [_token_ids(rng, PROMPT_TOKENS) for _ in range(args.streams)]
    figures = server.load(prompts, args.max_new_tokens, args.time_limit_s)
    if figures["ended"] < args.streams:
        raise BenchmarkError("not all requests were answered")
    return {name: figures[name] for name in ("tokens_per_s", "cpu_us", "ttft_p50_ms")}


# -- the routing


def _routing(args: argparse.Namespace) -> dict[str, Any]:
    size = args.block_size
    half = args.heads * (args.head_tokens // size) // 2 + RUNNING_BLOCKS
    engine = ["--threads", "1", "--block-size", str(size), "--max-batch-size", "8", "--num-blocks"]
    two = [str(half + 1), "--ray", "--replicas", "2"]  # plus block 0, which no request uses
    arms = {
        "engine": [*engine, str(2 * half + 1)],
        "prefix": [*engine, *two],
        "round_robin": [*engine, *two, "--routing", "round-robin"],
    }
    runs = {name: [_hit_rate(given, args, seed) for seed in range(args.repeat_runs)] for name, given in arms.items()}
    medians = {name: statistics.median(found) for name, found in runs.items()}
    of_engine, of_turns = medians["prefix"] / medians["engine"], medians["prefix"] / medians["round_robin"]
    print(f"=== {args.heads} heads of {args.head_tokens} tokens, {args.questions} prompts each ===")
    print("hit rate: " + ", ".join(f"{name} {rate:.3f}" for name, rate in medians.items()))
    print(f"by prefix {of_engine:.0%} of one engine's, {of_turns:.2f} times that of round robin")
    return {"hit_rates": runs, **medians, "ratio_to_engine": of_engine, "ratio_to_round_robin": of_turns}


def _hit_rate(given: list[str], args: argparse.Namespace, seed: int) -> float:
    """Returns the share of prompt tokens that were cached, starting with an empty cache."""
    rng = random.Random(seed)
    heads = [_token_ids(rng, args.head_tokens) for _ in range(args.heads)]
    prompts = [head + _token_ids(rng, QUESTION_TOKENS) for head in heads for _ in range(args.questions)]
    rng.shuffle(prompts)
    with ServedApi(given) as server, ThreadPoolExecutor(AT_A_TIME) as clients:
        usages = list(clients.map(lambda prompt: _usage(server, prompt, args.time_limit_s), prompts))
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return float(cached / sum(usage["prompt_tokens"] for usage in usages))


def _usage(server: ServedApi, prompt: list[int], timeout_s: float) -> dict[str, Any]:
    asked = {"model": server.model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    reply = server.http.post("/v1/completions", json=asked, timeout=timeout_s).json()
    if "usage" not in reply:
        raise BenchmarkError(f"a request was refused: {reply}")
    usage: dict[str, Any] = reply["usage"]
    return usage


def _token_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(LEAST_ID, MOST_ID) for _ in range(count)]
