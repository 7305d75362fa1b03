"""Times other tiles of the attention kernel than those of its table, each in a graph."""

from __future__ import annotations

from dataclasses import replace

import torch

from roseplay.bench.gpu_kernels import TINY, Shape, layer_seconds
from roseplay.bench.gpu_machine import Figures, Machine, error_of
from roseplay.kernels.cuda.attention.tiles import Launch, Tiles, choose_tiles

# (rows, keys, warps, stages) of a tile
_OF_DECODES = (
    (16, 32, 2, 4),
    (16, 32, 4, 4),
    (16, 64, 2, 3),
    (16, 64, 4, 2),
    (16, 64, 4, 4),
    (16, 128, 4, 2),
    (16, 128, 8, 2),
)
_OF_PROMPTS = ((64, 64, 4, 2), (64, 128, 4, 2), (128, 32, 8, 3), (128, 64, 4, 2), (128, 64, 8, 2), (128, 128, 8, 2))
_SIZES = "block_m", "block_n", "num_warps", "num_stages"


def tiles(shape: Shape, machine: Machine, engine: None) -> Figures:
    """A workload's attention with the tile of the table, and with each of the others."""
    sizes = _OF_DECODES if shape.num_tokens == len(shape.rows) else _OF_PROMPTS
    chosen, tried = (TINY, sizes[:2]) if machine.tiny else (shape, sizes)
    device, seen = torch.device(machine.device), []
    found: dict[str, Figures] = {}

    def own(launch: Launch) -> Tiles:
        seen.append(choose_tiles(launch))
        return seen[-1]

    ours = layer_seconds(chosen, device, tiles=own)
    for size in tried:

        def other(launch: Launch, size: tuple[int, int, int, int] = size) -> Tiles:
            return replace(choose_tiles(launch), **dict(zip(_SIZES, size, strict=True)))

        try:
            found[str(size)] = {"seconds": layer_seconds(chosen, device, tiles=other)}
        except Exception as error:  # such as more shared memory than there is
            found[str(size)] = error_of(error)
    timed = {size: way["seconds"] for size, way in found.items() if "seconds" in way}
    best = min(timed, key=timed.__getitem__, default=None)
    compared = f"best of {len(timed)} others {best} {timed[best] / ours:.2f}x" if best else "no other can run"
    table = str(tuple(getattr(seen[0], name) for name in _SIZES))
    return {
        "table": {"tiles": table, "seconds": ours},
        "others": found,
        "figure": f"{table} {ours * 1e6:,.0f} µs, {compared}",
    }
