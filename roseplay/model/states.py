"""The pool of recurrent states: one slot for each running request, and more slots for states that the prefix cache
keeps.

A slot is to a recurrent layer what KV blocks are to attention, but its size does not depend on the number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from roseplay.config import EngineConfig
from roseplay.model.upload import to_device

_DEFAULT_SLOTS = {True: 256, False: 64}  # on a GPU, on a CPU
_SHARE = 8  # by default the pool takes at most 1 / _SHARE of the free memory


class StateSlotsError(ValueError):
    """The settings leave no room for a single slot; the message is one line and says what to do."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """One tensor of a layer's state."""

    kind: str  # ``conv_states`` or ``recurrent_states``, as in transformers' ``LinearAttentionLayer``
    index: int  # its index among the layer's states of this kind
    shape: tuple[int, ...]  # its shape for one request
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


StateShapes = dict[int, tuple[StateShape, ...]]  # by the layer_idx of the module


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The rows of a packed batch, see ``PagedBatch``, for functions that compute all of them at once.

    A row whose ``seq_len`` is its number of tokens holds the first tokens of its request: it begins with a state of zeros,
    whatever its slot holds. Rows may be empty.
    """

    cu_seqlens: torch.Tensor  # int64 ``[rows + 1]`` and ``[rows]``, on the model's device
    seq_lens: torch.Tensor
    host_cu_seqlens: npt.NDArray[np.int64]  # a copy on the host
    memo: dict[Hashable, Any]  # values that a function computes in one layer and reuses in the other layers


@dataclass(frozen=True, slots=True)
class SlotStates:
    """One tensor of a layer's state for some requests, for functions that update states in place."""

    tensor: torch.Tensor  # the states in all slots, ``[slots, ...]``
    slots: torch.Tensor  # the requests' slots, int64 ``[requests]``
    # The requests' tokens, in a function that computes all rows of a packed batch; None in one that computes a single
    # token of each request.
    rows: PackedRows | None = None


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """The inputs of a convolution over all rows of a packed batch."""

    tensor: torch.Tensor  # ``[1, channels, tokens]``
    states: SlotStates  # the last inputs before those of each row, ``[slots, channels, inputs]``


def bytes_per_slot(shapes: StateShapes) -> int:
    """Returns the bytes of one request's states in all layers."""
    return sum(shape.num_bytes for layer in shapes.values() for shape in layer)


class StatePool:
    """The states of all layers, by slot.

    Args:
        shapes: the shapes of each layer's states, by ``layer_idx``.
        num_slots: number of slots for requests, including slot 0, which no request owns: trial steps write there.
        num_snapshots: number of further slots, for states that the prefix cache keeps.
    """

    def __init__(self, shapes: StateShapes, num_slots: int, device: torch.device, num_snapshots: int = 0) -> None:
        self.num_slots, self.num_snapshots = num_slots, num_snapshots
        self.shapes = shapes
        self._device = device
        self._tensors = {
            layer: [
                torch.zeros((num_slots + num_snapshots, *shape.shape), dtype=shape.dtype, device=device)
                for shape in states
            ]
            for layer, states in shapes.items()
        }

    def check(self, slots: npt.NDArray[np.int64]) -> None:
        """Raises ``ValueError`` unless each row of a step has a slot of its own."""
        if slots.min() < 1 or slots.max() >= self.num_slots or len(set(slots.tolist())) < len(slots):
            raise ValueError(f"the step's rows have the state slots {slots.tolist()}, of 1 to {self.num_slots - 1}")

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy states between slots in all layers; all are read before any is written.

        Args:
            copies: (source, destination) pairs.

        Raises:
            ValueError: a slot does not exist, or two copies have the same destination.
        """
        if not copies:
            return
        sources, destinations = zip(*copies, strict=True)
        last = self.num_slots + self.num_snapshots - 1
        if len(set(destinations)) < len(copies) or not all(1 <= slot <= last for pair in copies for slot in pair):
            raise ValueError(f"states are to be copied between slots {copies}, of 1 to {last}")
        tensors = list(chain.from_iterable(self._tensors.values()))
        if not set(sources) & set(destinations):  # no temporaries, and a GPU copies all layers at once
            for dtype in {tensor.dtype for tensor in tensors}:
                same = [tensor for tensor in tensors if tensor.dtype == dtype]
                written_to = [tensor[slot] for tensor in same for slot in destinations]
                torch._foreach_copy_(written_to, [tensor[slot] for tensor in same for slot in sources])
            return
        read, written = to_device([sources, destinations], torch.int64, self._device)
        for tensor in tensors:
            tensor.index_copy_(0, written, tensor.index_select(0, read))

    def read(self, layer: int, slots: torch.Tensor) -> list[torch.Tensor]:
        """Returns copies of a layer's states, each ``[slots, ...]``, in the order of ``shapes``."""
        return [tensor.index_select(0, slots) for tensor in self._tensors[layer]]

    def in_place(self, layer: int, slots: torch.Tensor, rows: PackedRows | None = None) -> list[SlotStates]:
        """Returns a layer's states for these slots, without copying them."""
        return [SlotStates(tensor, slots, rows) for tensor in self._tensors[layer]]

    def empty(self, layer: int, num_slots: int) -> list[torch.Tensor]:
        """Returns the initial states of requests, all zeros, in the form that ``read`` returns."""
        return [tensor.new_zeros((num_slots, *tensor.shape[1:])) for tensor in self._tensors[layer]]

    def write(self, layer: int, slots: torch.Tensor, states: list[torch.Tensor]) -> None:
        """Write states, in the form that ``read`` returns."""
        for tensor, state in zip(self._tensors[layer], states, strict=True):
            tensor.index_copy_(0, slots, state)


def choose_state_slots(config: EngineConfig, slot_bytes: int, *, free_bytes: int, on_gpu: bool) -> int:
    """Returns the number of slots for requests, without slot 0; 0 for a model without recurrent layers.

    This is ``config.state_slots`` if set, else 256 on a GPU or 64 on a CPU, but only as many as fit in an eighth of the
    free memory, and at least one.

    Raises ``StateSlotsError``, giving the numbers, if the memory does not hold them.
    """
    if slot_bytes == 0:
        return 0
    fits = max(0, free_bytes // slot_bytes - 1)
    wanted = config.state_slots or max(1, min(_DEFAULT_SLOTS[on_gpu], fits // _SHARE))
    if wanted > fits:
        raise _too_many(f"{wanted} state slots", (wanted + 1) * slot_bytes, free_bytes, "state_slots")
    return wanted


def choose_state_snapshots(config: EngineConfig, slot_bytes: int, *, free_bytes: int, on_gpu: bool) -> int:
    """Returns the number of states that the prefix cache keeps; 0 for a model without recurrent layers.

    This is ``config.state_snapshots`` if set; the default is as in ``choose_state_slots``, within an eighth of the
    memory that is left, but may be 0.

    Raises ``StateSlotsError``, giving the numbers, if the memory does not hold them.
    """
    if slot_bytes == 0:
        return 0
    fits = max(0, free_bytes // slot_bytes)
    wanted = config.state_snapshots
    if wanted is None:
        return min(_DEFAULT_SLOTS[on_gpu], fits // _SHARE)
    if wanted > fits:
        raise _too_many(f"{wanted} kept states", wanted * slot_bytes, free_bytes, "state_snapshots")
    return wanted


def _too_many(what: str, num_bytes: int, free_bytes: int, setting: str) -> StateSlotsError:
    need, free = num_bytes / 2**20, max(0, free_bytes) / 2**20
    return StateSlotsError(f"{what} need {need:,.1f} MiB, but {free:,.1f} MiB are free: set {setting} lower")
