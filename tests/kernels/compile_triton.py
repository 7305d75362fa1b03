"""Compile the kernels for an architecture that need not be present: ``compile_triton.py 90 232448``.

Prints a line for each configuration. Raises if one uses more shared memory than ``shared_bytes`` predicts.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from roseplay.kernels.cuda.activations import gate_kernel
from roseplay.kernels.cuda.attention.append import append_kernel
from roseplay.kernels.cuda.attention.kernels import attend_kernel, join_kernel
from roseplay.kernels.cuda.attention.tiles import choose_tiles, next_power_of_2, shared_bytes
from roseplay.kernels.cuda.norms import add_norm_kernel, rms_norm_kernel
from roseplay.kernels.cuda.rotate_append import rotate_append_kernel
from roseplay.model.attention import EVERYTHING, Reach

TYPES = {"fp16": 2, "bf16": 2, "fp32": 4}
INTS = {"num_tokens", "num_rows", "table_stride"}
# (k_dim, v_dim, query heads per KV head, dtype, reach, softcap and sinks, splits)
ATTEND = (
    (64, 64, 1, "fp16", EVERYTHING, False, 1),
    (128, 128, 4, "bf16", EVERYTHING, False, 2),
    (80, 80, 3, "bf16", Reach(window=100), True, 1),
    (192, 128, 1, "bf16", EVERYTHING, False, 1),
    (256, 256, 2, "bf16", Reach(chunk=100), True, 1),
    (512, 512, 71, "bf16", EVERYTHING, False, 4),
    (32, 32, 4, "fp32", EVERYTHING, True, 2),
    (128, 128, 4, "fp32", Reach(window=100), False, 1),
    (256, 256, 2, "fp32", EVERYTHING, False, 1),
)


def compile_kernel(kernel: Any, pointer: str, constants: dict[str, Any], architecture: int, **options: int) -> Any:
    """Strides and pointers are multiples of 16, as Triton finds at run time."""
    names = list(inspect.signature(kernel.fn).parameters)
    metadata = {"block_tables": "*i64", "cu_seqlens_q": "*i64", "seq_lens": "*i64", "slot_mapping": "*i64"}
    types = {name: "constexpr" if name in constants else metadata.get(name, pointer) for name in names}
    types |= {name: "i32" for name in names if name in INTS or name.endswith("_stride")}
    types |= {name: "fp32" for name in names if name in ("scale", "cap") or name.endswith("eps")}
    if constants.get("SPLITS", 1) > 1:
        types |= {
            name: "*fp32" for name in names if name in ("lse", "parts") or (name == "out" and "parts" not in names)
        }
    even = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if types[name].startswith("*") or (types[name] == "i32" and name not in INTS)
    }
    source = ASTSource(kernel, types, {(names.index(name),): value for name, value in constants.items()}, even)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def compile_attend(
    decode_only: bool, num_tokens: int, shape: tuple[Any, ...], architecture: int, shared_memory: int
) -> None:
    k_dim, v_dim, group, dtype, reach, extras, splits = shape
    itemsize = TYPES[dtype]
    tiles = choose_tiles(
        decode_only=decode_only, num_tokens=num_tokens, num_rows=4, group=group, k_dim=k_dim, v_dim=v_dim,
        itemsize=itemsize, shared_memory=shared_memory,
    )  # fmt: skip
    constants = {
        "NUM_HEADS": 2 * group, "GROUP": group, "HEADS": tiles.heads,
        "BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n, "BLOCK_SIZE": 16,
        "K_DIM": k_dim, "V_DIM": v_dim, "K_PAD": next_power_of_2(k_dim), "V_PAD": next_power_of_2(v_dim),
        "SPLITS": splits, "DECODE": decode_only, "SOFTCAP": extras, "SINKS": extras,
        "WINDOW": reach.window or 0, "CHUNK": reach.chunk or 0,
        "WIDEN": False, "PRECISION": "tf32x3" if itemsize == 4 else "tf32",
    }  # fmt: skip
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    found = compile_kernel(attend_kernel, f"*{dtype}", constants, architecture, **options).metadata.shared
    bound = shared_bytes(tiles, k_dim, v_dim, itemsize)
    print("attend", tiles, dtype, k_dim, v_dim, f"{found} of {bound} bytes", flush=True)
    if found > bound:
        raise SystemExit(f"{tiles} takes {found} bytes of shared memory, more than the {bound} it was thought to take")


def compile_fused(dtype: str, architecture: int) -> None:
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
    print("norms, gates, rotations", dtype, flush=True)


def main(architecture: int, shared_memory: int) -> None:
    for shape in ATTEND:
        for decode_only, num_tokens in ((True, 4), (False, 8), (False, 4096)):
            compile_attend(decode_only, num_tokens, shape, architecture, shared_memory)
    for dtype in TYPES:
        compile_fused(dtype, architecture)
        for v_dim, splits in ((64, 2), (80, 8), (512, 64)):
            constants = {"NUM_HEADS": 8, "V_DIM": v_dim, "BLOCK_V": min(next_power_of_2(v_dim), 8192 // splits)}
            compile_kernel(join_kernel, f"*{dtype}", {**constants, "SPLITS": splits}, architecture)
            print("join", dtype, v_dim, splits, flush=True)
        sizes = {"K_DIM": 80, "V_DIM": 64, "K_PAD": 128, "V_PAD": 64}
        compile_kernel(
            append_kernel, f"*{dtype}", {"NUM_HEADS": 7, "BLOCK_H": 8, "BLOCK_SIZE": 16, **sizes}, architecture
        )
        print("append", dtype, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
