"""The checks of ``roseplay bench gpu``: what the device is, and whether kernels, graphs and answers are right on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from typing import Any

import torch

import roseplay.kernels  # noqa: F401
from roseplay.bench.gpu_kernels import TINY, Layers, Shape, replayed
from roseplay.bench.gpu_machine import Figures, Machine
from roseplay.config import Knobs
from roseplay.doctor import answers
from roseplay.doctor.ceilings import matmul_flops, median_seconds, read_bandwidth
from roseplay.engine.client import Engine
from roseplay.model.attention import make_backend
from roseplay.traffic.environment import environment, version

# Of an attention layer's output, as a share of its norm: what two computations in this dtype may differ by.
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
_SANITIZER_CODE = 86
_SANITIZE_S = 150
_SMALL = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 0, "initializer_range": 0.15,
}  # fmt: skip
# Families whose steps a GPU must replay.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "bamba": {
        "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 16,
        "mamba_chunk_size": 32,
    },
}  # fmt: skip


def device(machine: Machine, engine: None) -> Figures:
    """The device, its versions, and its ceilings: ``bandwidth`` and ``matmul_flops`` as in ``Machine``."""
    found: Figures = {"environment": environment(threads=0, device=machine.device), "triton": version("triton")}
    name = "STAND-IN, no GPU"
    if machine.on_gpu:
        about = torch.cuda.get_device_properties(machine.device)
        found |= {
            "capability": f"{about.major}.{about.minor}",
            "multiprocessors": about.multi_processor_count,
            "memory_bytes": about.total_memory,
            "cuda": torch.version.cuda or torch.version.hip,
            "driver": _driver(),
        }
        name = f"{about.name}, {about.major}.{about.minor}, {about.total_memory / 2**30:.0f} GiB, CUDA {found['cuda']}"
    bandwidth, flops = read_bandwidth(machine.device), matmul_flops(machine.device, machine.size(8192, 256))
    ceilings = f"copy {bandwidth / 1e9:,.0f} GB/s, matrix product {flops / 1e12:,.1f} TFLOP/s"
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "triton", "transformers"))
    return {**found, "bandwidth": bandwidth, "matmul_flops": flops, "figure": f"{name}; {versions}; {ceilings}"}


def _driver() -> str | None:
    """Returns the driver's version, if ``nvidia-smi`` is there to ask."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.split("\n", 1)[0] or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def against_torch(shape: Shape, machine: Machine, engine: None) -> Figures:
    """A shape's attention: the Triton kernels against plain torch, and a graph against launches."""
    chosen = TINY if machine.tiny else shape
    layers = Layers(chosen, torch.device(machine.device))
    fast, plain = (make_backend(name, layers.cache) for name in ("triton", "gather"))
    layers.append(fast)  # plain attention takes the keys and values of a whole prompt from its arguments
    eager, right = (layers.attend(backend).clone() for backend in (fast, plain))
    graph, replay = replayed(lambda: layers.attend(fast), layers.device)
    replay()
    difference = _relative_error(eager, right)
    seconds = {
        name: median_seconds(run, machine.device) / layers.count
        for name, run in {
            "graph": replay,
            "eager": lambda: layers.attend(fast),
            "gather": lambda: layers.attend(plain),
        }.items()
    }
    same = torch.equal(graph, eager)
    times = ", ".join(f"{name} {took * 1e6:,.0f} µs" for name, took in seconds.items())
    return {
        "difference": difference,
        "graph_is_eager": same,
        "seconds": seconds,
        "wrong": difference > _TOLERANCES[chosen.dtype] or not same,
        "figure": f"{difference:.1g} from plain torch, graph {'the same' if same else 'DIFFERS'}; {times}",
    }


def _relative_error(found: torch.Tensor, right: torch.Tensor) -> float:
    """Returns the norm of the difference, as a share of the norm; infinite if a number is not finite."""
    if not bool(found.isfinite().all()):
        return float("inf")
    return float((found.float() - right.float()).norm() / right.float().norm())


def sanitized(machine: Machine, engine: None) -> Figures:
    """``compute-sanitizer`` over padding and append, each launched (every tensor with memory of its own) and replayed."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return {"figure": "not checked: compute-sanitizer is not installed"}
    errors: dict[str, int | str] = {}
    for name, environ in {"launched": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "replayed": {}}.items():
        code = f"from roseplay.bench import gpu_checks; gpu_checks.exercise({machine.device!r}, {name == 'replayed'})"
        command = [program, "--error-exitcode", str(_SANITIZER_CODE), sys.executable, "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SANITIZE_S, env={**os.environ, **environ}
        )
        counted = re.search(r"ERROR SUMMARY: (\d+)", done.stdout + done.stderr)
        failed = f"code {done.returncode}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"
        errors[name] = int(counted[1]) if counted and done.returncode in (0, _SANITIZER_CODE) else failed
    figure = "; ".join(f"{name}: {'errors: ' if isinstance(n, int) else ''}{n}" for name, n in errors.items())
    return {"errors": errors, "wrong": any(errors.values()), "figure": figure}


def exercise(device: str, replay: bool) -> None:
    """Launch, or capture and replay, attention and append for decodes, prompts and mixtures, with padding."""
    for rows in (((1, 40), (1, 17)), ((20, 50),), ((1, 90), (5, 21))):
        layers = Layers(Shape("", rows, 4, 2, 64, torch.float16), torch.device(device), layers=1, padding=3)
        backend = make_backend("triton", layers.cache)
        for run in (partial(layers.append, backend), partial(layers.attend, backend)):
            replayed(run, layers.device)[1]() if replay else run()
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def greedy_answers(family: str, machine: Machine, engine: None) -> Figures:
    """Greedy answers of a family whose steps a GPU must replay, against plain torch's."""
    model = machine.small_model({"model_type": family, **_SMALL, **FAMILIES[family]})
    common: dict[str, Any] = {
        "device": machine.device, "dtype": "float32", "num_blocks": 400, "max_model_len": 512, "random_weights": True,
    }  # fmt: skip
    # A CPU's own attention and state updates are not a GPU's.
    settings = {} if machine.on_gpu else {"attention": "reference", "fuse_ops": False}
    plainly: dict[str, Any] = {**common, **answers.PLAIN, "knobs": Knobs(cuda_graphs=False, overlap=False)}
    with Engine(model, **plainly) as plain:
        right = answers.ask(plain)
    with Engine(model, **{**common, **settings}) as fast:
        found, info = answers.ask(fast), fast.info
    check = answers.compare(machine.device, "float32", right, found)
    graphs = info.no_cuda_graphs or f"{info.cuda_graphs} graphs"
    return {
        "ok": check.ok,
        "difference": check.difference,
        "graphs": info.cuda_graphs,
        "no_graphs": info.no_cuda_graphs,
        "wrong": not check.ok or not info.cuda_graphs,
        "figure": f"{check}; {graphs}",
    }
