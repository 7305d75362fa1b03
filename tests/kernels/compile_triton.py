"""Compile kernels for GPUs that need not be present: ``compile_triton.py few``, or ``compile_triton.py all 90``.

Prints a line of JSON for each variant of attention: its name, its tiles, the bytes of shared memory that it takes, that were predicted
and that there are, its registers, and the bytes of registers that it spills to local memory. Fails if a kernel of
recurrent layers takes more shared memory than there is.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from roseplay.kernels.cuda.activations import gate_kernel
from roseplay.kernels.cuda.attention.append import append_kernel
from roseplay.kernels.cuda.attention.kernels import attend_kernel
from roseplay.kernels.cuda.attention.plan import plan_kernel
from roseplay.kernels.cuda.attention.tiles import Launch, choose_tiles, shared_bytes, tensor_cores
from roseplay.kernels.cuda.dots import next_power_of_2, pad, precision
from roseplay.kernels.cuda.norms import add_norm_kernel, rms_norm_kernel
from roseplay.kernels.cuda.rotate_append import rotate_append_kernel
from roseplay.kernels.cuda.states import convolution, delta_rule, mamba2
from roseplay.kernels.cuda.states.rows import chunk_of, launch_options
from roseplay.model.attention.pattern import EVERYTHING, Reach

# Bytes of shared memory that a program may take on each architecture.
SHARED = {
    name: kib * 1024 for name, kib in (("80", 163), ("89", 99), ("90", 227), ("100", 227), ("120", 99), ("gfx942", 64))
}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
INTS = {"num_tokens", "num_rows", "num_programs", "table_stride"}
METADATA = dict.fromkeys(
    ("block_tables", "cu_seqlens_q", "seq_lens", "slot_mapping", "slots", "chunks", "cu_seqlens"), "*i64"
)
SCALES = dict.fromkeys(("key_scales", "value_scales"), "*fp32")
OTHERS = SCALES | {"plan": "*i32", "arrived": "*i32", "parts": "*fp32", "lse": "*fp32"}
KINDS = {"decode": (True, 4), "mixed": (False, 8), "prefill": (False, 4096)}  # and tokens of a batch of four rows


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of the attention kernel; ``extras``: with a softcap and sinks."""

    architecture: str
    kind: str
    dtype: str
    k_dim: int
    v_dim: int
    group: int
    reach: Reach = EVERYTHING
    extras: bool = False
    latents: bool = False
    int8: bool = False

    def __str__(self) -> str:
        told = [self.kind, self.dtype, f"{self.k_dim}x{self.v_dim}", f"group {self.group}"]
        told += [f"{name} {value}" for name, value in self.reach._asdict().items() if value]
        told += ["softcap, sinks"] * self.extras + ["latents"] * self.latents + ["int8"] * self.int8
        return f"{self.architecture}: {', '.join(told)}"


# Heads as in models: key, value, and query heads per KV head.
HEADS = ((64, 64, 1), (80, 80, 3), (128, 128, 4), (192, 128, 1), (256, 256, 2), (512, 512, 71))
WINDOW, CHUNK = Reach(window=100), Reach(chunk=100)


def all_variants(architecture: str) -> Iterator[Variant]:
    """Every size, kind and dtype that the tiles distinguish, plainly and with everything that takes registers."""
    for (k_dim, v_dim, group), kind, dtype in itertools.product(HEADS, KINDS, ("bf16", "fp32")):
        shape = (architecture, kind, dtype, k_dim, v_dim, group)
        yield Variant(*shape)
        yield Variant(*shape, reach=WINDOW, extras=True)
        yield Variant(*shape, int8=True)
    for kind, dtype in itertools.product(KINDS, ("bf16", "fp32")):
        yield Variant(architecture, kind, dtype, 576, 512, 16, latents=True)
        yield Variant(architecture, kind, dtype, 576, 512, 128, latents=True)
    for kind in KINDS:
        yield Variant(architecture, kind, "fp16", 128, 128, 4, reach=CHUNK)
        yield Variant(architecture, kind, "bf16", 288, 256, 40, latents=True)


def few_variants() -> Iterator[Variant]:
    """Those of many models that have the fewest registers left."""
    yield Variant("80", "mixed", "bf16", 128, 128, 4)
    yield Variant("90", "prefill", "bf16", 128, 128, 4)
    yield Variant("90", "decode", "bf16", 128, 128, 48)
    yield Variant("90", "decode", "bf16", 128, 128, 4, int8=True)


def target(architecture: str) -> GPUTarget:
    if architecture.startswith("gfx"):
        return GPUTarget("hip", architecture, 64)
    return GPUTarget("cuda", int(architecture), 32)


def compile_kernel(
    kernel: Any,
    pointer: str,
    constants: dict[str, Any],
    architecture: str,
    pointers: dict[str, str] = OTHERS,
    **options: Any,
) -> Any:
    """Strides and pointers are multiples of 16, where Triton may assume it at run time.

    Args:
        pointer: type of the pointers that are not in ``pointers``.
    """
    names = list(inspect.signature(kernel.fn).parameters)
    types = {name: "constexpr" if name in constants else (METADATA | pointers).get(name, pointer) for name in names}
    types |= {name: "i32" for name in names if name in INTS or name.endswith("_stride") or name == "channels"}
    types |= {name: "fp32" for name in names if name in ("scale", "cap", "least", "most") or name.endswith("eps")}
    even = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if (types[name].startswith("*") or types[name] == "i32") and name not in {*INTS, *METADATA, "sinks"}
    }
    source = ASTSource(kernel, types, {(names.index(name),): value for name, value in constants.items()}, even)
    return triton.compile(source, target=target(architecture), options=options)


def registers(compiled: Any) -> tuple[int, int]:
    """Returns the registers of a thread, and the bytes of local memory to which it spills others."""
    if "amdgcn" in compiled.asm:
        found = dict(re.findall(r"\.(vgpr_count|private_segment_fixed_size):\s*(\d+)", compiled.asm["amdgcn"]))
        return int(found["vgpr_count"]), int(found["private_segment_fixed_size"])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"\b(REG|STACK):(\d+)", usage))
    return int(found["REG"]), int(found["STACK"])


def compile_attend(variant: Variant) -> dict[str, Any]:
    architecture = variant.architecture
    hip, itemsize = architecture.startswith("gfx"), DTYPES[variant.dtype].itemsize
    decode_only, num_tokens = KINDS[variant.kind]
    launch = Launch(
        decode_only, num_tokens, num_rows=4, group=variant.group, k_dim=variant.k_dim, v_dim=variant.v_dim,
        values_in_keys=variant.latents, itemsize=itemsize, shared_memory=SHARED[architecture],
        tensor_cores=tensor_cores(None if hip else int(architecture) // 10),
    )  # fmt: skip
    tiles = choose_tiles(launch)
    rows = tiles.heads * (1 if decode_only else tiles.block_q)
    rest = variant.k_dim - variant.v_dim if variant.latents else 0
    constants = {
        "NUM_HEADS": 2 * variant.group, "GROUP": variant.group, "HEADS": tiles.heads,
        "BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n, "BLOCK_SIZE": 16,
        "K_DIM": variant.k_dim - rest, "K_PAD": pad(variant.k_dim - rest), "REST": rest, "REST_PAD": pad(rest),
        "V_DIM": variant.v_dim, "V_PAD": pad(variant.v_dim),
        "ROWS": rows, "JOIN": next_power_of_2(rows), "DECODE": decode_only, "SOFTCAP": variant.extras, "SINKS": variant.extras,
        "WINDOW": variant.reach.window or 0, "CHUNK": variant.reach.chunk or 0,
        "WIDEN": False, "PRECISION": "ieee" if hip else "tf32x3" if itemsize == 4 else "tf32", "INT8": variant.int8,
    }  # fmt: skip
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    pointers = OTHERS | dict.fromkeys(("keys", "values"), "*i8" if variant.int8 else f"*{variant.dtype}")
    compiled = compile_kernel(attend_kernel, f"*{variant.dtype}", constants, architecture, pointers, **options)
    count, spilled = registers(compiled)
    return {
        "name": str(variant), "tiles": astuple(tiles), "shared": compiled.metadata.shared,
        "predicted": shared_bytes(tiles, launch), "available": SHARED[architecture], "registers": count, "spilled": spilled,
    }  # fmt: skip


def compile_fused(dtype: str, architecture: str) -> None:
    """Norms, gates and rotations of Llama 3 8B, Qwen3 8B, Gemma 2 9B and Gemma 3 27B."""
    for dim in (4096, 3584, 5376):
        row = {"DIM": dim, "PAD": next_power_of_2(dim)}
        warps = min(16, row["PAD"] // 512)
        for after, before in ((True, True), (False, True), (True, False)):
            extras = {"AFTER": after, "BEFORE": before, "AFTER_PLUS_ONE": after, "BEFORE_PLUS_ONE": after}
            compile_kernel(add_norm_kernel, f"*{dtype}", row | extras, architecture, num_warps=warps)
        compile_kernel(rms_norm_kernel, f"*{dtype}", {**row, "PLUS_ONE": True}, architecture, num_warps=warps)
    for gelu in (False, True):
        compile_kernel(gate_kernel, f"*{dtype}", {"DIM": 14336, "BLOCK": 1024, "GELU": gelu}, architecture)
    for heads, kv_heads, dim, normed in ((32, 8, 128, False), (32, 8, 128, True), (16, 8, 256, True)):
        sizes = {"Q_HEADS": heads, "KV_HEADS": kv_heads, "BLOCK_H": 1024 // dim, "BLOCK_SIZE": 16}
        sizes |= {"HALF": dim // 2, "PAD": dim // 2, "V_DIM": dim, "V_PAD": dim}
        norms = dict.fromkeys(("Q_NORM", "K_NORM", "Q_PLUS_ONE", "K_PLUS_ONE"), normed)
        compile_kernel(rotate_append_kernel, f"*{dtype}", sizes | norms, architecture, num_warps=2)


def compile_others(architecture: str) -> None:
    """Compile the kernels beside attention's, which have no tiles to choose."""
    for reach in (EVERYTHING, WINDOW, CHUNK):
        constants = {"BLOCK_N": 64, "BLOCK": 256, "WINDOW": reach.window or 0, "CHUNK": reach.chunk or 0}
        compile_kernel(plan_kernel, "*i64", constants, architecture)
    for dtype in DTYPES:
        compile_fused(dtype, architecture)
        for k_dim, v_dim, heads in ((80, 64, 8), (576, 0, 1)):
            sizes = {"K_DIM": k_dim, "V_DIM": v_dim, "K_PAD": pad(k_dim), "V_PAD": pad(v_dim)}
            append = {"NUM_HEADS": max(1, heads - 1), "BLOCK_H": heads, "BLOCK_SIZE": 16, **sizes}
            for cached, int8 in ((dtype, False), ("i8", True)):
                pointers = SCALES | dict.fromkeys(("keys", "values"), f"*{cached}")
                compile_kernel(append_kernel, f"*{dtype}", append | {"INT8": int8}, architecture, pointers)


def compile_states(architecture: str) -> None:
    """Compile the kernels of recurrent layers; ends the program if one takes more shared memory than there is."""
    torch.version.hip = "6" if architecture.startswith("gfx") else None  # what the launchers look at
    for item, dtype in DTYPES.items():
        chunk = chunk_of(dtype)
        common = {"CHUNK": chunk, "PRECISION": precision(dtype)}
        solve = {"DOUBLINGS": chunk.bit_length() - 1, "SOLVE": precision(torch.float32)}
        delta = {**common, "V_HEADS": 32, "GROUP": 2, "K_DIM": 128, "V_DIM": 128, "K_PAD": 128}
        of_conv = {"INPUTS": 4, "WIDTH": 4, "CHUNK": chunk, "BLOCK_C": 64, "BIAS": True, "SILU": True}
        kernels = [(convolution.convolve_kernel, of_conv, item)]
        for decays in (1, 128):  # of a head, and of each channel
            rule = {**delta, "DECAYS": decays, "DECAYS_PAD": decays}
            kernels.append((delta_rule.prepare_kernel, {**rule, **solve, "V_PAD": 128}, "fp32"))
            kernels.append((delta_rule.scan_kernel, {**rule, "BLOCK_V": chunk}, "fp32"))
        for size in (128, 256):
            sizes = {"HEADS": 128, "GROUP": 128, "DIM": 64, "SIZE": size, "PAD": size, "BLOCK_P": chunk}
            kernels.append((mamba2.scan_kernel, {**common, **sizes}, "fp32"))
        for kernel, constants, state in kernels:
            floats = ("u", "w", "scores", "g", "a", *(["out"] if kernel is mamba2.scan_kernel else []))
            pointers = dict.fromkeys(floats, "*fp32") | {"states": f"*{state}"}
            options = {"num_warps": 4} if kernel is convolution.convolve_kernel else launch_options()
            compiled = compile_kernel(kernel, f"*{item}", constants, architecture, pointers, **options)
            if compiled.metadata.shared > SHARED[architecture]:
                raise SystemExit(f"{kernel} {constants} takes {compiled.metadata.shared} bytes of shared memory")


def main(which: str, architecture: str | None = None) -> None:
    variants = few_variants() if architecture is None else all_variants(architecture)
    for variant in variants:
        try:
            print(json.dumps(compile_attend(variant)), flush=True)
        except ValueError as error:  # it fits no tile
            print(json.dumps({"name": str(variant), "refused": str(error)}), flush=True)
    if architecture is not None:
        compile_others(architecture)
        compile_states(architecture)


if __name__ == "__main__":
    main(*sys.argv[1:])
