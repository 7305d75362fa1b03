"""Parts of the kernels that compute prompts in chunks: products of small matrices that stay in a cache.

A chunk has as many tokens as a strip has columns, 32, so that its transposed keys are one strip. What belongs to values is
kept in strips of 32 of their numbers, padded with zeros: a head's state in ``[parts, k_dim, 32]``, the values of a chunk
in ``[parts, 32, 32]``. All arrays are float32 and flat.
"""

from __future__ import annotations

import numba
import numpy as np
import torch

from roseplay.kernels.cpu.activations import exp
from roseplay.kernels.cpu.simd import address, advance
from roseplay.kernels.cpu.tiles import STRIP, most_rows, multiply_cached_rows
from roseplay.kernels.state_functions import check

CHUNK = STRIP  # tokens
VALUES = CHUNK * STRIP  # numbers of a strip of a chunk's values
_MOST = most_rows(torch.float32)


def check_products() -> None:
    """Raises ``ValueError`` if this CPU has no instructions for the products."""
    check(_MOST > 0, "this CPU")


@numba.njit(nogil=True, error_model="numpy")
def multiply(x, x_stride, strip, initial, initial_stride, steps, out, out_stride, rows, causal):
    """Write ``rows`` rows of x ``[rows, steps]`` times a strip, plus the rows of ``initial``, to ``out``.

    All are pointers; ``initial`` may be ``out``. With ``causal``, row i of x is 0 beyond i.
    """
    tiles = (rows + _MOST - 1) // _MOST
    for tile in range(tiles):
        first = rows * tile // tiles
        end = rows * (tile + 1) // tiles
        multiply_cached_rows(
            advance(x, first * x_stride), x_stride, strip, advance(initial, first * initial_stride), initial_stride,
            min(steps, end) if causal else steps, advance(out, first * out_stride), out_stride, end - first, _MOST,
        )  # fmt: skip


@numba.njit(inline="always")
def to_strips(numbers, strips, token):
    """Write the values of a token into the strips of a chunk."""
    for part in range((len(numbers) + STRIP - 1) // STRIP):
        for i in range(min(STRIP, len(numbers) - part * STRIP)):
            strips[part * VALUES + token * STRIP + i] = numbers[part * STRIP + i]


@numba.njit(inline="always")
def from_strips(strips, token, numbers):
    """The reverse of ``to_strips``."""
    for part in range((len(numbers) + STRIP - 1) // STRIP):
        for i in range(min(STRIP, len(numbers) - part * STRIP)):
            numbers[part * STRIP + i] = strips[part * VALUES + token * STRIP + i]


@numba.njit(inline="always")
def to_decays(sums, count, decays):
    """Write each token's decay from the begin of the chunk.

    ``sums [32]`` are the logarithms of the tokens' decays, summed from the begin of the chunk; beyond the chunk's
    ``count`` tokens, the last sum is repeated.
    """
    for i in range(count, CHUNK):
        sums[i] = sums[count - 1]
    for i in range(CHUNK):
        decays[i] = sums[i]
    exp(decays)


@numba.njit(inline="always")
def decay_products(products, row, sums, token, factor, through, between):
    """Multiply a row of products with earlier tokens by the decay from each to ``token``, and by a factor.

    Products with tokens from ``through`` on become 0; ``between [32]`` is overwritten.
    """
    for other in range(CHUNK):
        between[other] = min(sums[token] - sums[other], np.float32(0))
    exp(between)
    for other in range(CHUNK):
        at = row * CHUNK + other
        products[at] = products[at] * between[other] * factor if other < through else np.float32(0)


@numba.njit(inline="always")
def add_to_state(state, keys, values, sums, count, k_dim, parts, between):
    """Decay a state to the end of a chunk, and add the products of its keys and values.

    ``keys [k_dim, 32]`` are overwritten, as is ``between [32]``.
    """
    last = sums[count - 1]
    for i in range(CHUNK):
        between[i] = last
    exp(between)
    decay = between[0]
    for i in range(parts * k_dim * STRIP):
        state[i] *= decay
    for i in range(CHUNK):
        between[i] = last - sums[i]
    exp(between)
    for d in range(k_dim):
        for i in range(CHUNK):
            keys[d * CHUNK + i] *= between[i]
    for part in range(parts):
        multiply(
            address(keys, 0), CHUNK, address(values, part * VALUES), address(state, part * k_dim * STRIP), STRIP, count,
            address(state, part * k_dim * STRIP), STRIP, k_dim, False,
        )  # fmt: skip


@numba.njit(inline="always")
def read_state(numbers, strips, k_dim, v_dim, by_value):
    """Lay out a state; ``numbers`` are ``[k_dim, v_dim]``, or ``[v_dim, k_dim]`` with ``by_value``."""
    for first in range(0, v_dim, STRIP):
        for k in range(k_dim):
            for v in range(first, min(first + STRIP, v_dim)):
                strips[first * k_dim + k * STRIP + v - first] = numbers[v * k_dim + k if by_value else k * v_dim + v]


@numba.njit(inline="always")
def write_state(strips, numbers, k_dim, v_dim, by_value):
    """The reverse of ``read_state``."""
    for first in range(0, v_dim, STRIP):
        for k in range(k_dim):
            for v in range(first, min(first + STRIP, v_dim)):
                numbers[v * k_dim + k if by_value else k * v_dim + v] = strips[first * k_dim + k * STRIP + v - first]
