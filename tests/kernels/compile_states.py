"""Compile the kernels of recurrent layers for GPUs that need not be present: ``compile_states.py 80 166912``, or ``gfx942``.

Prints a line for each configuration. Fails if one uses more shared memory than given.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from roseplay.kernels.cuda.states import convolution, delta_rule, mamba2
from roseplay.kernels.cuda.states.rows import chunk_of, launch_options, precision

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
INTS = ("slots", "chunks", "cu_seqlens", "seq_lens")


def compile_kernel(kernel: Any, constants: dict[str, Any], target: GPUTarget, item: str, state: str) -> int:
    """Returns the bytes of shared memory. Strides and pointers are multiples of 16, as Triton finds at run time."""
    types = {}
    for name in inspect.signature(kernel.fn).parameters:
        if name in constants:
            types[name] = "constexpr"
        elif name.endswith("_stride") or name == "channels":
            types[name] = "i32"
        elif name in ("scale", "least", "most"):
            types[name] = "fp32"
        else:
            floats = name in ("u", "w", "scores", "g", "a") or (name == "out" and kernel is mamba2.scan_kernel)
            types[name] = "*i64" if name in INTS else f"*{state if name == 'states' else 'fp32' if floats else item}"
    names = list(types)
    even = [name for name in names if types[name] == "i32" or types[name].startswith("*")]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in even if name not in INTS}
    values = {(names.index(name),): value for name, value in constants.items()}
    options = {"num_warps": 4} if kernel is convolution.convolve_kernel else launch_options()
    compiled = triton.compile(ASTSource(kernel, types, values, attributes), target=target, options=options)
    return int(compiled.metadata.shared)


def main(architecture: str, shared_memory: int) -> None:
    amd = architecture.startswith("gfx")
    torch.version.hip = "6" if amd else None  # what the launchers look at
    target = GPUTarget("hip", architecture, 64) if amd else GPUTarget("cuda", int(architecture), 32)
    for dtype, item in TYPES.items():
        chunk = chunk_of(dtype)
        common = {"CHUNK": chunk, "PRECISION": precision(dtype)}
        solve = {"DOUBLINGS": chunk.bit_length() - 1, "SOLVE": precision(torch.float32)}
        delta = {**common, "V_HEADS": 32, "GROUP": 2, "K_DIM": 128, "V_DIM": 128, "K_PAD": 128}
        rules = {"": delta | {"DECAYS": 1, "DECAYS_PAD": 1}, " by channel": delta | {"DECAYS": 128, "DECAYS_PAD": 128}}
        of_conv = {"INPUTS": 4, "WIDTH": 4, "CHUNK": chunk, "BLOCK_C": 64, "BIAS": True, "SILU": True}
        kernels = [("convolve", convolution.convolve_kernel, of_conv, item)]
        for which, rule in rules.items():
            kernels.append((f"prepare{which}", delta_rule.prepare_kernel, {**rule, **solve, "V_PAD": 128}, "fp32"))
            kernels.append((f"scan{which}", delta_rule.scan_kernel, {**rule, "BLOCK_V": chunk}, "fp32"))
        for size in (128, 256):
            sizes = {"HEADS": 128, "GROUP": 128, "DIM": 64, "SIZE": size, "PAD": size, "BLOCK_P": chunk}
            kernels.append((f"mamba 2, {size}", mamba2.scan_kernel, {**common, **sizes}, "fp32"))
        for name, kernel, constants, state in kernels:
            found = compile_kernel(kernel, constants, target, item, state)
            print(name, item, architecture, f"{found} of {shared_memory} bytes", flush=True)
            if found > shared_memory:
                raise SystemExit(f"{name} takes {found} bytes of shared memory, {architecture} has {shared_memory}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
