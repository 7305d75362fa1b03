"""Parts that Mamba and Mamba 2 share: the steps of a token, and its output from the states' results."""

from __future__ import annotations

import math

import numba

from roseplay.kernels.cpu.activations import silu
from roseplay.kernels.cpu.rows import round_row


@numba.njit(inline="always")
def to_steps(numbers, biases, bf16):
    """Compute ``softplus(numbers + biases)`` of float32 numbers in place; ``bf16``: torch would use bfloat16."""
    for i in range(len(numbers)):
        numbers[i] += biases[i]
    if bf16:
        round_row(numbers)
    for i in range(len(numbers)):
        if numbers[i] <= 20:  # torch's softplus is linear from there on
            numbers[i] = math.log1p(math.exp(numbers[i]))
    if bf16:
        round_row(numbers)


@numba.njit(inline="always")
def add_skipped(out, skipped, bf16):
    """Add ``skipped``, the inputs times D, to the states' results; with ``bf16``, rounds both first."""
    if bf16:
        round_row(out)
        round_row(skipped)
    for i in range(len(out)):
        out[i] += skipped[i]


@numba.njit(inline="always")
def multiply_by_gate(out, gate, bf16):
    """Multiply ``out`` by the SiLU of ``gate``, which has whole vectors of 16."""
    silu(gate)
    if bf16:
        round_row(out)
        round_row(gate)
    for i in range(len(out)):
        out[i] *= gate[i]
