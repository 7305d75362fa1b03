"""Computes a causal depthwise convolution, whose state is its last inputs: of single tokens, or of packed rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types

from roseplay.kernels import state_functions
from roseplay.kernels.cpu.activations import silu
from roseplay.kernels.cpu.parallel import Work
from roseplay.kernels.cpu.rows import read_row, round_row, write_row
from roseplay.kernels.cpu.simd import LANES, array_at, kernel
from roseplay.kernels.cpu.states.layout import addresses, item_of
from roseplay.kernels.state_functions import Convolution, check, check_activation
from roseplay.model.states import SlotStates

_CHUNK = 512  # channels of a piece


def causal_conv1d_update(
    hidden_states: torch.Tensor,
    conv_state: SlotStates,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """Shift each channel's inputs by the new one, and convolve them.

    Args:
        hidden_states: ``[rows, channels, 1]``, float32 or bfloat16.
        conv_state: ``[slots, channels, inputs]``, at least as many inputs as the kernel is wide.
        weight: ``[channels, width]``, of the same dtype; ``bias``: ``[channels]``.
        activation: ``silu``, ``swish`` or None.

    Returns ``[rows, channels, 1]``. Raises ``ValueError`` for anything else.
    """
    rows, channels, tokens = hidden_states.shape
    state, inputs, width = conv_state.tensor, conv_state.tensor.shape[-1], weight.shape[-1]
    check(tokens == 1 and state.shape[1] == channels and inputs >= width, "one token of each channel")
    check_activation(activation)
    _check_weights(hidden_states, weight, bias)
    x = hidden_states[:, :, 0]
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty((rows, channels), dtype=x.dtype)
    compute = _update(item_of(x), item_of(state), inputs, width, activation is not None)
    chunks = -(-channels // _CHUNK)
    arguments = [x.data_ptr(), x.stride(0), state.data_ptr(), conv_state.slots.data_ptr(), weight.data_ptr()]
    arguments += [0 if bias is None else bias.data_ptr(), out.data_ptr(), channels, chunks]
    Work(compute, arguments, rows * chunks, (weight, bias, conv_state), light=rows * channels < 2 * _CHUNK).run()
    return out[:, :, None]


@state_functions.causal_conv1d_fn
def causal_conv1d_fn(rows: Convolution) -> torch.Tensor:
    """Convolve the inputs of each row of a packed batch with those before them, and store its last inputs as its state."""
    _check_weights(rows.x, rows.weight, rows.bias)
    x, state, (tokens, channels) = rows.x, rows.states.tensor, rows.x.shape
    out = torch.empty((tokens, channels), dtype=x.dtype)
    num_rows, places = addresses(rows.states)
    compute = _convolve(item_of(x), item_of(state), state.shape[-1], rows.weight.shape[-1], rows.silu)
    chunks = -(-channels // _CHUNK)
    arguments = [x.data_ptr(), x.stride(0), state.data_ptr(), *places, rows.weight.data_ptr()]
    arguments += [0 if rows.bias is None else rows.bias.data_ptr(), out.data_ptr(), channels, chunks]
    Work(compute, arguments, num_rows * chunks, (rows,), light=tokens * channels < 2 * _CHUNK).run()
    return out


def _check_weights(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    check(weight.dtype == x.dtype and weight.is_contiguous(), "weights of the inputs' dtype")
    check(bias is None or (bias.dtype == weight.dtype and bias.is_contiguous()), "a bias of the inputs' dtype")


@cache
def _update(item: Any, state_item: Any, inputs: int, width: int, activated: bool) -> Any:
    bf16, state_bf16 = item is types.uint16, state_item is types.uint16
    skip = inputs - width + 1  # of the inputs, including the new one

    def causal_conv1d_update(args, piece):
        x_stride, channels, chunks = args[2], args[8], args[9]
        row, chunk = piece // chunks, piece % chunks
        begin = channels * chunk // chunks
        count = channels * (chunk + 1) // chunks - begin
        slot = array_at(args[4], types.int64, row, 1)[0]
        x, y = np.empty(count, np.float32), np.zeros((count + LANES - 1) // LANES * LANES, np.float32)
        read_row(array_at(args[1], item, row * x_stride + begin, count), x, bf16)
        if args[6]:
            read_row(array_at(args[6], item, begin, count), y[:count], bf16)
        stored = array_at(args[3], state_item, (slot * channels + begin) * inputs, count * inputs)
        past, taps = np.empty(count * inputs, np.float32), np.empty(count * width, np.float32)
        read_row(stored, past, state_bf16)
        read_row(array_at(args[5], item, begin * width, count * width), taps, bf16)
        for channel in range(count):
            for tap in range(width - 1):
                y[channel] += past[channel * inputs + skip + tap] * taps[channel * width + tap]
            y[channel] += x[channel] * taps[channel * width + width - 1]
        for channel in range(count):
            for tap in range(inputs - 1):
                past[channel * inputs + tap] = past[channel * inputs + tap + 1]
            past[channel * inputs + inputs - 1] = x[channel]
        write_row(past, stored, state_bf16)
        if activated:
            if bf16:
                round_row(y)
            silu(y)
        write_row(y, array_at(args[7], item, row * channels + begin, count), bf16)

    return kernel(causal_conv1d_update)


@cache
def _convolve(item: Any, state_item: Any, inputs: int, width: int, activated: bool) -> Any:
    bf16, state_bf16 = item is types.uint16, state_item is types.uint16
    before = width - 1  # inputs before a token that it sees

    def causal_conv1d(args, piece):
        x_stride, channels, chunks = args[2], args[10], args[11]
        row, chunk = piece // chunks, piece % chunks
        begin = channels * chunk // chunks
        count = channels * (chunk + 1) // chunks - begin
        slot, ends = array_at(args[4], types.int64, row, 1)[0], array_at(args[5], types.int64, row, 2)
        first, tokens = ends[0], ends[1] - ends[0]
        goes_on = array_at(args[6], types.int64, row, 1)[0] > tokens
        stored = array_at(args[3], state_item, (slot * channels + begin) * inputs, count * inputs)
        state, taps = np.zeros(count * inputs, np.float32), np.empty(count * width, np.float32)
        if goes_on:
            read_row(stored, state, state_bf16)
        read_row(array_at(args[7], item, begin * width, count * width), taps, bf16)
        by_tap, shift = np.empty((width, count), np.float32), np.zeros(count, np.float32)
        seen = np.empty((width, count), np.float32)  # the input of token t is row t % width
        y = np.zeros((count + LANES - 1) // LANES * LANES, np.float32)
        if args[8]:
            read_row(array_at(args[8], item, begin, count), shift, bf16)
        for tap in range(width):
            for channel in range(count):
                by_tap[tap, channel] = taps[channel * width + tap]
        for tap in range(before):
            for channel in range(count):
                seen[tap + 1, channel] = state[channel * inputs + inputs - before + tap]
        for token in range(tokens):
            newest = token % width
            read_row(array_at(args[1], item, (first + token) * x_stride + begin, count), seen[newest], bf16)
            for channel in range(count):
                y[channel] = shift[channel]
            for tap in range(width):
                inputs_of_tap, weights = seen[(token + 1 + tap) % width], by_tap[tap]
                for channel in range(count):
                    y[channel] += inputs_of_tap[channel] * weights[channel]
            if activated:
                if bf16:
                    round_row(y)
                silu(y)
            write_row(y, array_at(args[9], item, (first + token) * channels + begin, count), bf16)
        if tokens > 0:
            for i in range(inputs):
                token = tokens + i - inputs
                if token >= 0:
                    read_row(array_at(args[1], item, (first + token) * x_stride + begin, count), y[:count], bf16)
                for channel in range(count):
                    state[channel * inputs + i] = y[channel] if token >= 0 else state[channel * inputs + tokens + i]
            write_row(state, stored, state_bf16)

    return kernel(causal_conv1d)
