"""The measurements of ``roseplay bench gpu``, one for each row: their workloads and figures."""

from __future__ import annotations

import contextlib
import io
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from roseplay.bench.compare import play_in_turn
from roseplay.bench.decode import bytes_per_step, decode_batch
from roseplay.bench.gpu_machine import Machine
from roseplay.bench.peers import Contest
from roseplay.bench.runs import BenchmarkError, play_once, random_prompts
from roseplay.config import SamplingParams
from roseplay.own_models import EMBEDDED
from roseplay.traffic.workload import Arrival

if TYPE_CHECKING:
    from roseplay.engine.client import Engine

SETTINGS = {"all on": {}, "overlap off": {"overlap": False}, "graphs off": {"cuda_graphs": False}}
ALL_ON = {"overlap": True, "cuda_graphs": True}


def in_turn(machine: Machine, engine: Engine, run: Callable[[], Any]) -> dict[str, list[Any]]:
    """Returns repeated runs under each of ``SETTINGS``, in turn so that a slow minute affects all; drops the first."""
    found: dict[str, list[Any]] = {name: [] for name in SETTINGS}
    for _ in range(machine.repeats + 1):
        for name, knobs in SETTINGS.items():
            engine.set_knobs(**{**ALL_ON, **knobs})
            found[name].append(run())
    engine.set_knobs(**ALL_ON)
    return {name: runs[1:] for name, runs in found.items()}


# -- decodes against the time to read their bytes


def decode(batch_size: int, context: int, machine: Machine, engine: Engine) -> dict[str, Any]:
    """A decode step's share of its roofline: the bytes of weights and KV over the copy bandwidth."""
    batch, length = machine.size(batch_size, min(batch_size, 3)), machine.size(context, 20)
    prefill_steps = -(-batch * length // (engine.info.max_step_tokens or 1 << 30))
    new_tokens = machine.size(72 + prefill_steps, 12)
    found = in_turn(machine, engine, lambda: decode_batch(engine, batch, length, new_tokens))
    step_bytes = bytes_per_step(engine.info, batch, length, new_tokens)
    floor_ms = step_bytes / machine.bandwidth * 1e3
    figures = {}
    for name, runs in found.items():
        step_ms = statistics.median(period for run in runs for period in run.period_ms)
        figures[name] = {
            "step_ms": step_ms,
            "device_ms": statistics.median(took for run in runs for took in run.device_ms),
            "host_gap_ms": step_ms - statistics.median(took for run in runs for took in run.device_ms),
            "roofline": floor_ms / step_ms,
            "output_tokens_per_s": batch / step_ms * 1e3,
            "replayed": statistics.mean(run.replayed for run in runs),
            "runs_ms": [statistics.median(run.period_ms) for run in runs],
            "stages_ms": runs[-1].stages_ms,
        }
    best = figures["all on"]
    return {
        "batch": batch,
        "context": length,
        "bytes_per_step": step_bytes,
        "floor_ms": floor_ms,
        "settings": figures,
        "share": best["roofline"],
        "figure": f"{best['roofline']:.0%} of roofline, {best['step_ms']:.3f} ms, {best['output_tokens_per_s']:,.0f} tok/s,"
        f" host gap {best['host_gap_ms']:.3f} ms, {best['replayed']:.0%} replayed;"
        f" without graphs {figures['graphs off']['step_ms']:.3f} ms",
    }


# -- throughput


def against_generate_batch(machine: Machine, engine: None) -> dict[str, Any]:
    """GPT-2, 64 requests of 512 new tokens at once, in turn with transformers' ``generate_batch`` on the same work."""
    from roseplay.model.loader import decoder_config

    model, requests = machine.model("gpt2-124m"), machine.size(64, 4)
    contest = Contest(
        model=model,
        config=machine.settings("float16"),
        prompts=random_prompts(decoder_config(model).vocab_size, [machine.size(16, 4)] * requests, seed=7),
        arrivals_s=[0.0] * requests,
        max_new_tokens=machine.size(512, 8),
        max_batch_size=requests,
    )
    failed = None
    try:
        rates = play_in_turn(contest, ("roseplay", "generate_batch"), {}, runs=machine.repeats + 1)
    except BenchmarkError as error:  # if generate_batch failed; otherwise the next line raises it again
        rates, failed = play_in_turn(contest, ("roseplay",), {}, runs=machine.repeats + 1), str(error)
    medians = {name: statistics.median(found[1:]) for name, found in rates.items()}
    ours = medians["roseplay"]
    ratio = None if failed else ours / medians["generate_batch"]
    return {
        "output_tokens_per_s": ours,
        "runs": {name: found[1:] for name, found in rates.items()},
        "failed": failed,
        "ratio": ratio,
        "figure": f"{ours:,.0f} tok/s, {f'{ratio:.1f}x generate_batch' if ratio else 'generate_batch failed'}",
    }


def burst_of_prompts(machine: Machine, engine: Engine) -> dict[str, Any]:
    """GPT-2, 128 prompts of 256 tokens at once, 64 new tokens each."""
    params = SamplingParams(max_new_tokens=machine.size(64, 6), ignore_eos=True)
    prompts = random_prompts(engine.info.vocab_size, [machine.size(256, 16)] * machine.size(128, 4), seed=7)
    workload = [Arrival(0.0, prompt, params) for prompt in prompts]
    figures = {
        name: {
            "output_tokens_per_s": statistics.median(run.output_tokens_per_s for run in runs),
            "total_tokens_per_s": statistics.median(
                (run.prompt_tokens + run.completion_tokens) / run.wall_s for run in runs
            ),
            "ttft_p50_ms": statistics.median(run.ttft.p50 or 0.0 for run in runs),
            "itl_p50_ms": statistics.median(run.itl.p50 or 0.0 for run in runs),
        }
        for name, runs in in_turn(machine, engine, lambda: play_once(engine, workload)).items()
    }
    best = figures["all on"]
    return {
        "settings": figures,
        "figure": f"{best['output_tokens_per_s']:,.0f} output tok/s, {best['total_tokens_per_s']:,.0f} with prompts",
    }


# -- prompts and kernels against the matrix rate


def long_prompt(machine: Machine, engine: Engine) -> dict[str, Any]:
    """A prompt of 8k tokens: its operations a second of device time, as a share of a large product's rate."""
    from roseplay.model.loader import decoder_config

    length = machine.size(8192, 200)
    config = decoder_config(machine.model("qwen3-8b"))
    head_numbers = config.vocab_size * config.hidden_size  # in the output layer, which only one token needs
    numbers = engine.info.weight_bytes // (4 if engine.info.dtype == "float32" else 2)
    flops = 2 * (numbers - head_numbers) * length + 2 * head_numbers
    flops += 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * length**2  # half is masked
    took = []
    for number in range(machine.repeats + 1):
        engine.clear_cache()
        reader = engine.telemetry.reader()
        (prompt,) = random_prompts(engine.info.vocab_size, [length], seed=number)
        stream = engine.submit(prompt, SamplingParams(max_new_tokens=1, ignore_eos=True)).result(120)
        if stream.error:
            raise RuntimeError(stream.error)
        took.append(sum(record.device_ns for record in reader.steps() if record.prompt_tokens) / 1e9)
    median = statistics.median(took[1:])
    share = flops / median / machine.matmul_flops
    return {
        "prompt_tokens": length,
        "flops": flops,
        "device_s": took[1:],
        "share": share,
        "figure": f"{share:.0%} of the matrix rate, {median * 1e3:.1f} ms",
    }


# -- the Lab


def lab(machine: Machine, engine: None) -> dict[str, Any]:
    """A comparison of the Lab, which starts one engine after the other: what it says of graphs on and off."""
    from roseplay.lab.command import main as compare

    model = (
        ["--model", EMBEDDED] if machine.tiny else ["--model", "qwen3-0.6b", "--random-weights", "--dtype", "bfloat16"]
    )
    arms = ["--a", "cuda_graphs=true", "--b", "cuda_graphs=false"] if machine.on_gpu else []
    size = ["--num-requests", str(machine.size(24, 6)), "--max-new-tokens", str(machine.size(64, 8))]
    said, refused = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(refused):
        code = compare(["poisson", *arms, "--device", machine.device, *size, *model])
    if code != 0:
        raise RuntimeError((refused.getvalue().strip().splitlines() or ["the Lab failed"])[-1])
    title, _, sentences = said.getvalue().partition("\n\n")
    return {"report": said.getvalue().splitlines(), "figure": sentences.split("\n", 1)[0] or title}
