"""Chooses the fastest kind of product on this machine, measured when a model is loaded, at the sizes of its layers.

There are up to three kinds: AMX's tiles, vectors of AVX-512, AVX2 or NEON (both on ``matmul``'s strips), and oneDNN's.
Which is fastest depends on the CPU and the number of rows, and no list of CPUs is ever complete.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch.nn import functional

try:
    from roseplay.kernels.cpu import amx, int8, matmul
    from roseplay.kernels.cpu.features import has, has_amx, has_neon
    from roseplay.kernels.cpu.tiles import STRIP, most_rows
except ImportError:  # Numba is an extra
    matmul = int8 = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

TILES, ONEDNN = "AMX tiles", "oneDNN"
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
        tiles_from: the fewest rows that are multiplied by AMX's tiles; None for never.
        measured: microseconds of a product by kind and number of rows; empty if there was no choice.
        size: ``(in, out)`` of the products that were measured.
    """

    strips: bool
    tiles_from: int | None = None
    measured: Microseconds = field(default_factory=dict)
    size: tuple[int, int] = (0, 0)

    @property
    def used(self) -> str:
        """Describes the products in use."""
        if not self.strips:
            return ONEDNN
        if self.tiles_from is None:
            return VECTORS
        return TILES if self.tiles_from <= 1 else f"{VECTORS}, {TILES} from {self.tiles_from} rows on"

    @property
    def times(self) -> str:
        """Describes the measurements; "" if there were none."""
        if not self.measured:
            return ""
        times = (f"{kind} {'/'.join(f'{of[rows]:.0f}' for rows in ROWS)}" for kind, of in self.measured.items())
        inner, outer = self.size
        return f"µs of {'/'.join(map(str, ROWS))} rows x {inner} x {outer}: {', '.join(times)}"

    def __str__(self) -> str:
        return f"{self.used} ({self.times})" if self.times else self.used


def default_products(dtype: torch.dtype, *, quantized: bool = False) -> Products:
    """Returns the products to use without measuring, for weights of a dtype or, if ``quantized``, in int8."""
    if quantized:
        strips = int8 is not None and int8.available()
        return Products(strips, 1 if strips and int8.has_tiles() else None)
    strips = matmul is not None and most_rows(dtype) > 0
    return Products(strips, 1 if strips and dtype == torch.bfloat16 and has_amx() else None)


def choose(dtype: torch.dtype, sizes: Iterable[tuple[int, int]], *, quantized: bool = False) -> Products:
    """Returns the fastest products for layers of these sizes, ``(in, out)`` each; takes tens of milliseconds.

    As many weights are multiplied in turn as the model has, but not more than are needed to read each from memory: those
    of a small model are read from a cache.

    Args:
        quantized: whether their weights are in int8; ``dtype`` is then only x's.
    """
    by_default = default_products(dtype, quantized=quantized)
    weight = Counter[tuple[int, int]]()
    for inner, outer in sizes:
        weight[inner, outer] += inner * outer
    if not by_default.strips or not weight:
        return by_default
    inner, outer = weight.most_common(1)[0][0]
    item = torch.empty(0, dtype=dtype).element_size()
    outer = max(1, min(outer, _MOST_BYTES // (inner * item)))
    item = 1 if quantized else item
    copies = max(1, min(_ALL_BYTES, weight.total() * item) // (inner * outer * item))
    kinds = _kinds_of_int8(inner, outer, copies) if quantized else _kinds(dtype, inner, outer, copies)
    if not kinds.keys() & {TILES, VECTORS}:
        return Products(False)
    return decide(_measure(kinds, dtype, inner), (inner, outer))


def decide(measured: Microseconds, size: tuple[int, int] = (0, 0)) -> Products:
    """Returns the fastest products by the geometric mean over the numbers of rows.

    Tiles alone, or else vectors alone, are preferred unless another choice is clearly faster. With them, a request's
    tokens depend neither on the other requests in its steps nor on the measurements, and a recorded step runs entirely
    in the same threads.
    """

    def mean_log(of: Mapping[int, float]) -> float:
        return statistics.fmean(math.log(of[rows]) for rows in ROWS)

    vectors, tiles, theirs = (measured.get(kind) for kind in (VECTORS, TILES, ONEDNN))
    found: dict[tuple[bool, int | None], float] = {}
    if tiles is not None:
        found[True, 1] = mean_log(tiles)
    if vectors is not None:
        found[True, None] = mean_log(vectors)
    if vectors is not None and tiles is not None:
        for least in ROWS[1:]:
            found[True, least] = mean_log({rows: (tiles if rows >= least else vectors)[rows] for rows in ROWS})
    if theirs is not None:
        found[False, None] = mean_log(theirs)
    simple, best = next(iter(found)), min(found, key=found.__getitem__)
    strips, tiles_from = best if found[best] < found[simple] + math.log(_CLEARLY) else simple
    return Products(strips, tiles_from, measured, size)


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


def _kinds_of_int8(inner: int, outer: int, copies: int) -> dict[str, Run]:
    """Returns the same for weights in int8."""
    weight = (torch.arange(inner * outer, dtype=torch.int32) % 251 - 125).to(torch.int8).view(outer, inner)
    strips = [int8.lay_out(weight) for _ in range(copies)]
    scales = torch.full((len(strips[0]) * STRIP,), 1 / 125)
    bias = torch.zeros_like(scales)

    def by_strips(tiles_from: int | None) -> Run:
        return lambda x, i: int8.multiply(x, strips[i % copies], scales, bias, (inner, outer), tiles_from)

    kinds = {TILES: by_strips(1)} if int8.has_tiles() else {}
    return _right({**kinds, VECTORS: by_strips(None)}, weight.float() / 125, torch.float32)


def _right(kinds: dict[str, Run], weight: torch.Tensor, dtype: torch.dtype) -> dict[str, Run]:
    """Returns the kinds that correctly compute the product with ``weight``, float32 ``[out, in]``."""
    inner = weight.shape[1]
    for kind, run in list(kinds.items()):
        x = torch.linspace(-1, 1, 3 * inner).to(dtype).view(3, inner)
        found, expected = run(x, 0), functional.linear(x.float(), weight)
        if not torch.allclose(found.float(), expected, rtol=0.02, atol=0.02 * inner**0.5):
            logger.warning("products by %s are wrong on this CPU, and are not used", kind)
            del kinds[kind]
    return kinds


def _measure(kinds: Mapping[str, Run], dtype: torch.dtype, inner: int) -> Microseconds:
    """Returns the shortest time of each kind for each number of rows, measuring the kinds in turn."""
    measured: dict[str, dict[int, float]] = {kind: {} for kind in kinds}
    for rows in ROWS:
        x, turn = torch.ones((rows, inner), dtype=dtype), 0
        for _ in range(_REPEATS):
            for kind, run in kinds.items():
                turn += 1
                begin = time.perf_counter()
                run(x, turn)
                took = (time.perf_counter() - begin) * 1e6
                measured[kind][rows] = min(took, measured[kind].get(rows, math.inf))
    return measured
