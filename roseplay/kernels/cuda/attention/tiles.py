"""Partitions the Triton kernel's work: tile sizes by head size, and how many programs share long contexts.

Both depend only on shapes that are fixed when a CUDA graph is captured: numbers of tokens and rows with padding, the
width of the block tables, and the heads. The lengths of decodes' contexts are used by the GPU itself (``plan``).

A tile has ``block_q`` tokens with all query heads of one KV head, because these read the same keys: ``block_m`` rows of a
matrix product. A decode of a model with 4 query heads per KV head uses 4 rows of at least 16; the wasted arithmetic costs
nothing in a kernel that is bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from roseplay.kernels.cuda.dots import next_power_of_2, pad

Kind = Literal["decode", "mixed", "prefill"]
# The instructions that multiply matrices: NVIDIA's of compute capability 8 and 12, with operands and sums in registers, of 9,
# with operands in shared memory, and of 10, with sums in memory of their own; and AMD's.
TensorCores = Literal["mma", "wgmma", "tcgen05", "mfma"]

MOST_SPLITS = 64  # of a prompt
# Contexts are split so that each multiprocessor has as many programs: decodes are bound by memory and need several, though
# no more than run at once (an H100 has registers for two with heads of 128); one prompt keeps a multiprocessor busy.
_DECODES_PER_PROCESSOR, _PROMPTS_PER_PROCESSOR = 2, 1
# Of a prompt, in tiles: joining shorter splits costs more than splitting gains.
_LEAST_TILES_OF_A_SPLIT = 2
_KEYS_OF_LARGE_GROUPS = 64  # of decodes with more than 16 query heads per KV head: the registers hold no more scores


@dataclass(frozen=True, slots=True)
class Tiles:
    """A configuration of the kernel.

    Attributes:
        block_m: rows of a query tile, ``block_q * heads`` of them used.
        block_n: keys of a tile; blocks of the cache may be smaller or larger.
        num_warps, num_stages: as Triton's launch options.
        heads: query heads that one program computes, all of one KV head.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    heads: int = 1

    @property
    def block_q(self) -> int:
        """Tokens of a query tile."""
        return self.block_m // self.heads


# [bytes of a number][padded head size] -> tiles, chosen from compiled kernels: in 16 bits they spill no registers, in float32
# about 100 bytes, and with heads of 512 float32 kilobytes, as all others that were tried. Decodes of up to 128 numbers in 16
# bits were chosen by their times on an H100: a program keeps 32 or 64 kB of keys and values in flight. Prompts have as many rows
# as registers hold, because tensor cores need 64 rows per warp group. Batches of decodes with short rows ("mixed") have half as
# many, so that a decode wastes less. float32 is computed as three products of tf32, with smaller tiles.
_TABLE: dict[int, dict[int, dict[Kind, Tiles]]] = {
    2: {
        64: {"decode": Tiles(16, 128, 4, 2), "mixed": Tiles(64, 64, 4, 3), "prefill": Tiles(128, 64, 8, 3)},
        128: {"decode": Tiles(16, 128, 4, 2), "mixed": Tiles(64, 64, 4, 3), "prefill": Tiles(128, 64, 8, 3)},
        256: {"decode": Tiles(16, 32, 4, 3), "mixed": Tiles(64, 16, 4, 3), "prefill": Tiles(128, 32, 8, 3)},
        512: {"decode": Tiles(16, 16, 4, 3), "mixed": Tiles(32, 16, 8, 3), "prefill": Tiles(32, 32, 8, 2)},
    },
    4: {
        64: {"decode": Tiles(16, 64, 4, 3), "mixed": Tiles(32, 32, 4, 3), "prefill": Tiles(32, 32, 4, 3)},
        128: {"decode": Tiles(16, 32, 4, 3), "mixed": Tiles(32, 32, 8, 2), "prefill": Tiles(32, 32, 8, 2)},
        256: {"decode": Tiles(16, 16, 8, 3), "mixed": Tiles(16, 16, 8, 2), "prefill": Tiles(16, 16, 8, 2)},
        512: {"decode": Tiles(16, 16, 8, 2), "mixed": Tiles(16, 16, 8, 2), "prefill": Tiles(16, 16, 8, 2)},
    },
}
# The same where queries and sums are in registers too, which leaves fewer for keys.
_MMA: dict[int, dict[int, dict[Kind, Tiles]]] = {
    2: {
        128: {"mixed": Tiles(64, 32, 4, 3), "prefill": Tiles(128, 32, 8, 3)},
        256: {"mixed": Tiles(32, 32, 4, 3), "prefill": Tiles(64, 32, 8, 3)},
    },
}


@dataclass(frozen=True, slots=True)
class Launch:
    """What decides the tiles of a launch.

    Attributes:
        decode_only: no row has more than one token.
        num_tokens, num_rows: of the batch, with padding; a batch is "mixed" if its rows do not fill a tile on average.
        group: query heads per KV head.
        values_in_keys: values are the first ``v_dim`` numbers of the keys (``LayerShape``).
        itemsize: bytes of a number in products.
        shared_memory: bytes available to a program.
    """

    decode_only: bool
    num_tokens: int
    num_rows: int
    group: int
    k_dim: int
    v_dim: int
    values_in_keys: bool
    itemsize: int
    shared_memory: int
    tensor_cores: TensorCores


def tensor_cores(capability: int | None) -> TensorCores:
    """Returns the instructions of an NVIDIA GPU of this major compute capability, or of AMD's GPUs (None)."""
    if capability is None:
        return "mfma"
    return {9: "wgmma", 10: "tcgen05"}.get(capability, "mma")  # type: ignore[return-value]


def choose_tiles(launch: Launch) -> Tiles:
    """Returns the tiles: those of the table, whose stages, then keys, then rows are reduced until they fit.

    Raises ``ValueError`` if nothing fits, or a head has more than 512 numbers.
    """
    k_dim, v_dim, group = launch.k_dim, launch.v_dim, launch.group
    dim = v_dim if launch.values_in_keys else max(k_dim, v_dim)  # the rest of keys is a product of its own
    width = max(64, next_power_of_2(dim))
    if width > 512:
        raise ValueError(f"attention heads of {dim} numbers: the triton backend takes up to 512")
    table = _TABLE[max(launch.itemsize, 2)][width]
    if launch.tensor_cores == "mma":
        table = table | _MMA.get(launch.itemsize, {}).get(width, {})
    tiles = _with_heads(table["prefill"], group)
    if launch.decode_only:
        # A large group may fill more than 16 rows, so that keys are read once for more heads.
        tiles, mixed = table["decode"], table["mixed"]
        block_m = min(pad(group), mixed.block_m)
        if block_m > tiles.block_m:
            keys, warps = min(tiles.block_n, _KEYS_OF_LARGE_GROUPS), max(tiles.num_warps, mixed.num_warps)
            tiles = replace(tiles, block_m=block_m, block_n=keys, num_warps=warps)
        tiles = _with_heads(tiles, group)
    elif launch.num_tokens < launch.num_rows * tiles.block_q:
        tiles = _with_heads(table["mixed"], group)
    while shared_bytes(tiles, launch) > launch.shared_memory:
        if tiles.num_stages > 2:
            tiles = replace(tiles, num_stages=tiles.num_stages - 1)
        elif tiles.block_n > 16:
            tiles = replace(tiles, block_n=tiles.block_n // 2)
        elif tiles.block_m > 16:
            tiles = _with_heads(replace(tiles, block_m=tiles.block_m // 2), group)
        elif tiles.num_stages > 1:
            tiles = replace(tiles, num_stages=1)
        else:
            raise ValueError(
                f"heads of {k_dim} and {v_dim} numbers do not fit {launch.shared_memory} bytes of shared memory"
            )
    return tiles


def _with_heads(tiles: Tiles, group: int) -> Tiles:
    return replace(tiles, heads=min(group, tiles.block_m))


def shared_bytes(tiles: Tiles, launch: Launch) -> int:
    """Returns an upper bound on a program's shared memory: queries, keys and values of each stage, weights, and 4 KiB."""
    k_dim, v_dim = launch.k_dim, launch.v_dim
    keys, values, queries = (pad(dim) for dim in (k_dim, v_dim, k_dim))
    if launch.values_in_keys:
        queries = keys = pad(v_dim) + pad(k_dim - v_dim)
        # Blackwell's instructions want values in another order, and so a copy of them; float32's three products do, too.
        values = values if launch.tensor_cores == "tcgen05" or launch.itemsize == 4 else 0
    numbers = (
        tiles.block_m * queries + tiles.num_stages * tiles.block_n * (keys + values) + tiles.block_m * tiles.block_n
    )
    return numbers * launch.itemsize + 4096


def split_prompts(programs: int, most_keys: int, block_n: int, num_processors: int) -> int:
    """Returns the number of splits of each context, a power of two, that gives all multiprocessors a program.

    Args:
        programs: the number of programs without splitting.
        most_keys: the most keys that a query tile may read.
    """
    most = min(MOST_SPLITS, -(-most_keys // block_n) // _LEAST_TILES_OF_A_SPLIT)
    splits = 1
    while programs * splits < num_processors * _PROMPTS_PER_PROCESSOR and 2 * splits <= most:
        splits *= 2
    return splits


def more_for_decodes(head_parts: int, num_processors: int) -> int:
    """Returns how many programs beyond one for each decode share long contexts, for each part of the heads."""
    return -(-num_processors * _DECODES_PER_PROCESSOR // head_parts)
