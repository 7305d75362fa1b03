"""Chooses the fastest kind of product on this machine, measured when a model is loaded, at the sizes of its layers.

There are up to three kinds for plain weights: AMX's tiles, vectors of AVX-512, AVX2 or NEON (both on ``matmul``'s strips),
and oneDNN's. Weights in quantized blocks are multiplied in integers, or expanded for the products of plain ones. Which is
fastest depends on the CPU and the number of rows, and no list of CPUs is ever complete.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from roseplay.model.ggml_blocks import BLOCK, FORMATS

try:
    from roseplay.kernels.cpu import amx, matmul, tape
    from roseplay.kernels.cpu.arena import Arena
    from roseplay.kernels.cpu.features import has, has_amx, has_neon
    from roseplay.kernels.cpu.quants import product
    from roseplay.kernels.cpu.quants.strips import block_bytes, example
    from roseplay.kernels.cpu.quants.tiles import most_rows as integer_rows
    from roseplay.kernels.cpu.recorder import Recorder
    from roseplay.kernels.cpu.tiles import STRIP, most_rows
except ImportError:  # Numba is an extra
    matmul = product = None  # type: ignore[assignment]
_AHEAD = (0,) if product is None else product.AHEAD

logger = logging.getLogger(__name__)

TILES, ONEDNN = "AMX tiles", "oneDNN"
INTEGERS = "integers in AVX2" if matmul is None or not has("avx512vnni") else "integers in AVX-512 VNNI"
EXPANDED = "expanded floats"
VECTORS = "AVX-512" if matmul is None or has("avx512f") else "NEON" if has_neon() else "AVX2"
ROWS = (1, 8, 32, 128)  # for which products are measured: decode steps, and a prompt
_REPEATS = 3
_MOST_BYTES = 2**23  # of a measured weight; larger ones are cut to fewer outputs
_ALL_BYTES = 2**25  # of the weights that are multiplied in turn, so that those of a large model are read from memory
_CLEARLY = 0.85  # share of another kind's time that counts as clearly faster: measurements vary from start to start

Microseconds = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Products:
    """How linear layers are multiplied.

    Attributes:
        strips: whether weights are laid out for ``matmul``, else for oneDNN.
        tiles_from: the fewest rows that are multiplied by AMX's tiles, or, of weights in quantized blocks, after these have
            been expanded; None for never.
        measured: microseconds of a product by kind and number of rows; empty if there was no choice.
        size: ``(in, out)`` of the products that were measured.
        blocks: whether weights are in quantized blocks.
        ahead: how many bytes before their use such weights are prefetched.
        bandwidth: bytes of the weight a second that a product of one row reads; ``share``: of what plain reading reaches.
    """

    strips: bool
    tiles_from: int | None = None
    measured: Microseconds = field(default_factory=dict)
    size: tuple[int, int] = (0, 0)
    blocks: bool = False
    ahead: int = _AHEAD[0]
    bandwidth: float = 0.0
    share: float = 0.0

    def kind(self, rows: int) -> str:
        """Returns the kind that multiplies a number of rows."""
        few, many = (INTEGERS, EXPANDED) if self.blocks else (VECTORS, TILES)
        if not self.strips:
            return ONEDNN
        return few if self.tiles_from is None or rows < self.tiles_from else many

    @property
    def used(self) -> str:
        """Describes the products in use."""
        few, many = self.kind(1), self.kind(self.tiles_from or 1)
        return few if few == many else f"{few}, {many} from {self.tiles_from} rows on"

    @property
    def times(self) -> str:
        """Describes the measurements; "" if there were none."""
        if not self.measured:
            return ""
        times = (f"{kind} {'/'.join(f'{costs[rows]:.0f}' for rows in ROWS)}" for kind, costs in self.measured.items())
        inner, outer = self.size
        reads = f"one row reads {self.bandwidth / 1e9:.0f} GB/s, {self.share:.0%} of what plain reading reaches; "
        if self.kind(1) == INTEGERS:
            reads += f"prefetched {self.ahead} bytes ahead; "
        return f"{reads}µs of {'/'.join(map(str, ROWS))} rows x {inner} x {outer}: {', '.join(times)}"

    def __str__(self) -> str:
        return f"{self.used} ({self.times})" if self.times else self.used


def default_products(dtype: torch.dtype) -> Products:
    """Returns the products to use without measuring, for plain weights."""
    strips = matmul is not None and most_rows(dtype) > 0
    return Products(strips, 1 if strips and dtype == torch.bfloat16 and has_amx() else None)


def block_products(dtype: torch.dtype) -> Products | None:
    """Returns the products to use without measuring, for weights in quantized blocks; None if there are none for x's
    ``dtype``."""
    if product is None:
        return None
    integers, floats = integer_rows() > 0, most_rows(dtype) > 0
    return Products(True, None if integers else 1, blocks=True) if integers or floats else None


def block_kinds() -> frozenset[str]:
    """Returns the types of quantized blocks, by ggml's names, that this CPU multiplies in integers."""
    return frozenset(FORMATS) if product is not None and integer_rows() else frozenset()


def choose(dtype: torch.dtype, sizes: Iterable[tuple[int, int]], kind: str | None = None) -> Products:
    """Returns the fastest products for layers of these sizes, ``(in, out)`` each; takes tens of milliseconds.

    As many weights are multiplied in turn as the model has, but not more than are needed to read each from memory: those
    of a small model are read from a cache.

    Args:
        kind: type of the quantized blocks in which the weights are; None for plain weights of ``dtype``.
    """
    by_default = default_products(dtype) if kind is None else block_products(dtype)
    assert by_default is not None, "the blocks would not have been kept"
    numbers = Counter[tuple[int, int]]()
    for inner, outer in sizes:
        numbers[inner, outer] += inner * outer
    if not by_default.strips or not numbers:
        return by_default
    item = float(dtype.itemsize) if kind is None else block_bytes(FORMATS[kind][0]) / (BLOCK * STRIP)
    inner, outer, copies = measured_size(numbers, item)
    distances: dict[str, Run] = {}
    if kind is None:
        kinds = _kinds(dtype, inner, outer, copies)
    else:
        kinds, distances = _kinds_of_blocks(dtype, kind, inner, outer, copies)
    if not kinds.keys() & {TILES, VECTORS, INTEGERS, EXPANDED}:
        return Products(False)
    size = int(inner * outer * item)
    memory = torch.ones((copies, -(-size // 8)), dtype=torch.int64)
    reading = min(_took(memory.sum) for _ in range(_REPEATS)) / copies
    measured = _measure(kinds, dtype, inner, copies)
    chosen = decide(measured, (inner, outer))
    took = measured[chosen.kind(1)][1]
    if chosen.kind(1) == INTEGERS:
        by_distance = _measure(distances, dtype, inner, copies, ROWS[:2])
        chosen = dataclasses.replace(chosen, ahead=choose_ahead(by_distance))
        took = by_distance[f"{chosen.ahead}"][1]
    return dataclasses.replace(chosen, bandwidth=size / took * 1e6, share=min(1.0, reading / took))


def measured_size(numbers: Counter[tuple[int, int]], item: float) -> tuple[int, int, int]:
    """Returns the ``in`` and ``out`` of the weights to multiply, and how many of them.

    Args:
        numbers: how many numbers there are in layers of each size.
        item: bytes of a number.
    """
    inner, outer = numbers.most_common(1)[0][0]
    outer = max(1, min(outer, int(_MOST_BYTES / (inner * item))))
    return inner, outer, max(1, int(min(_ALL_BYTES, numbers.total() * item) / (inner * outer * item)))


def choose_ahead(measured: Microseconds) -> int:
    """Returns the distance in bytes, of those measured, by which weights are best prefetched for one row and for eight."""
    took = {ahead: _mean_log(measured[f"{ahead}"], ROWS[:2]) for ahead in _AHEAD}
    best = min(took, key=took.__getitem__)
    return best if took[best] < took[_AHEAD[0]] + math.log(_CLEARLY) else _AHEAD[0]


def decide(measured: Microseconds, size: tuple[int, int] = (0, 0)) -> Products:
    """Returns the fastest products by the geometric mean over the numbers of rows.

    Tiles alone, or else vectors or integers alone, are preferred unless another choice is clearly faster. With them, a
    request's tokens depend neither on the other requests in its steps nor on the measurements, and a recorded step runs
    entirely in the same threads.
    """
    blocks = bool(measured.keys() & {INTEGERS, EXPANDED})
    few, many = (INTEGERS, EXPANDED) if blocks else (VECTORS, TILES)
    vectors, tiles, theirs = (measured.get(kind) for kind in (few, many, ONEDNN))
    means: dict[tuple[bool, int | None], float] = {}
    if tiles is not None and not (blocks and vectors is not None):
        means[True, 1] = _mean_log(tiles)
    if vectors is not None:
        means[True, None] = _mean_log(vectors)
    if vectors is not None and tiles is not None:
        for least in (1, *ROWS[1:]):
            means[True, least] = _mean_log({rows: (tiles if rows >= least else vectors)[rows] for rows in ROWS})
    if theirs is not None:
        means[False, None] = _mean_log(theirs)
    simple, best = next(iter(means)), min(means, key=means.__getitem__)
    strips, tiles_from = best if means[best] < means[simple] + math.log(_CLEARLY) else simple
    return Products(strips, tiles_from, measured, size, blocks)


def _mean_log(of: Mapping[int, float], of_rows: Iterable[int] = ROWS) -> float:
    return statistics.fmean(math.log(of[rows]) for rows in of_rows)


Choose = Callable[[torch.dtype, Iterable[tuple[int, int]], str | None], Products]  # the arguments of ``choose``
Run = Callable[[torch.Tensor, int], torch.Tensor]


def _kinds(dtype: torch.dtype, inner: int, outer: int, copies: int) -> dict[str, Run]:
    """Returns the available kinds of product, each as a function of x and of the number of a weight."""
    weight = (torch.arange(inner * outer, dtype=torch.int32) % 251 - 125).to(dtype).div_(125).view(outer, inner)
    strips = [matmul.lay_out(weight) for _ in range(copies)]
    bias = torch.zeros(len(strips[0]) * STRIP)

    def by_strips(tiles_from: int | None) -> Run:
        return lambda x, i: matmul.multiply(x, strips[i % copies], bias, outer, tiles_from)

    kinds: dict[str, Run] = {}
    if dtype == torch.bfloat16 and has_amx() and inner % amx.STEP == 0:
        kinds[TILES] = by_strips(1)
    kinds[VECTORS] = by_strips(None)
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, None) for _ in range(copies)]
    kinds[ONEDNN] = lambda x, i: torch.ops.mkldnn._linear_pointwise(x, packed[i % copies], None, "none", [], "")
    return _right(kinds, weight.float(), dtype)


def _kinds_of_blocks(
    dtype: torch.dtype, kind: str, inner: int, outer: int, copies: int
) -> tuple[dict[str, Run], dict[str, Run]]:
    """Returns the same for weights in quantized blocks, and products in integers by distances of prefetching."""
    form, padded = FORMATS[kind][0], -(-inner // BLOCK) * BLOCK
    weight, strips = example(form, outer, padded)
    packed = [strips.clone() for _ in range(copies)]
    bias = torch.zeros(len(strips) * STRIP)

    def by(floats_from: int | None, ahead: int = _AHEAD[0]) -> Run:
        return lambda x, i: product.multiply(x, packed[i % copies], form, bias, (inner, outer), floats_from, ahead)

    kinds = {INTEGERS: by(None)} if integer_rows() else {}
    if most_rows(dtype):
        kinds[EXPANDED] = by(1)
    return _right(kinds, weight[:, :inner], dtype), {f"{ahead}": by(None, ahead) for ahead in _AHEAD}


def _right(kinds: dict[str, Run], weight: torch.Tensor, dtype: torch.dtype) -> dict[str, Run]:
    """Returns the kinds that correctly compute the product with ``weight``, float32 ``[out, in]``."""
    inner = weight.shape[1]
    for kind, run in list(kinds.items()):
        x = torch.linspace(-1, 1, 3 * inner).to(dtype).view(3, inner)
        result, expected = run(x, 0), functional.linear(x.float(), weight)
        if not torch.allclose(result.float(), expected, rtol=0.02, atol=0.02 * inner**0.5):
            logger.warning("products by %s are wrong on this CPU, and are not used", kind)
            del kinds[kind]
    return kinds


def _measure(
    kinds: Mapping[str, Run], dtype: torch.dtype, inner: int, copies: int, of_rows: Iterable[int] = ROWS
) -> dict[str, dict[int, float]]:
    """Returns the shortest time of a product of each kind for each number of rows, measuring the kinds in turn."""
    measured: dict[str, dict[int, float]] = {kind: {} for kind in kinds}
    for rows in of_rows:
        x, number = torch.ones((rows, inner), dtype=dtype), max(1, min(copies, ROWS[2] // rows))
        turns = [
            (kind, _recorded(run, x, range(turn * number, (turn + 1) * number)))
            for turn in range(_REPEATS)
            for kind, run in kinds.items()
        ]
        for kind, products in turns:
            took = _took(products) / number
            measured[kind][rows] = min(took, measured[kind].get(rows, math.inf))
    return measured


def _recorded(run: Run, x: torch.Tensor, weights: Iterable[int]) -> Callable[[], object]:
    """Returns a function that multiplies by several weights, as a recorded step does: its threads are woken once."""
    arena, recorded = Arena(), tape.Tape()
    with tape.record(recorded), Recorder(arena, recorded.calls):
        for i in weights:
            run(x, i)
    recorded.join()

    def replay(kept: Any = (arena, x)) -> None:  # the recorded calls have only addresses
        recorded.replay()

    return replay


def _took(call: Callable[[], object]) -> float:
    """Returns the microseconds that a call takes."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6
