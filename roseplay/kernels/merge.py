"""Linear layers with the same input, such as q, k and v or gate and up, computed as one product; and how they are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from roseplay.model.block_tensor import BlockTensor, kind_of

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Make = Callable[[torch.Tensor, torch.Tensor | None], nn.Module]  # of a weight and a bias


def joined(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns matrices that are stored alike as one, below each other."""
    blocks = [weight for weight in weights if isinstance(weight, BlockTensor)]
    if not blocks:
        return torch.cat(tuple(weights))
    stored = np.concatenate([block.blocks(0, len(block)).reshape(len(block), -1) for block in blocks])
    return BlockTensor(stored, blocks[0].kind, None, blocks[0].dtype)


class MergedLinear:
    """Linear layers with the same input, computed as one product with their weights stacked.

    The model calls them one by one (``MergedPart``). The first call computes all of them; the others return their part of
    the result if their input is the same tensor, and otherwise compute again.

    Args:
        make: returns the layer that computes a weight and a bias.
    """

    def __init__(self, layers: list[nn.Linear], make: Make) -> None:
        self.sizes = [layer.out_features for layer in layers]
        bias = None
        if any(layer.bias is not None for layer in layers):
            like = {"dtype": layers[0].weight.dtype, "device": layers[0].weight.device}
            biases = (torch.zeros(y.out_features, **like) if y.bias is None else y.bias for y in layers)
            bias = torch.cat(tuple(biases))
        self.linear = make(joined([layer.weight for layer in layers]), bias)
        self._last: tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None = None

    def part(self, x: torch.Tensor, number: int) -> torch.Tensor:
        """Returns the output ``[..., out]`` of the layer ``number`` for ``x [..., in]``."""
        last = self._last
        if last is None or last[0] is not x:
            last = self._last = (x, self.linear(x).split(self.sizes, -1))
        if number == len(self.sizes) - 1:
            self._last = None  # keep nothing between steps
        return last[1][number]


class MergedPart(nn.Module):
    """One layer of a ``MergedLinear``, in that layer's place in the model.

    Args:
        weight: ``[out, in]``: some models read its dtype or shape.
    """

    def __init__(self, merged: MergedLinear, number: int, weight: torch.Tensor) -> None:
        super().__init__()
        self.merged, self.number = merged, number
        self.out_features, self.in_features = weight.shape
        self.weight = weight.detach()  # no parameter: the first one's device would be the model's

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.merged.part(x, self.number)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, number={self.number}"


class SharedInputs:
    """Finds linear layers of one parent that are called one after another with the same tensor, while entered.

    Attributes:
        groups: the layers with the same input, in the order of their calls; complete on exit.
        bypassed: ids of layers that were not called although their parent was: it uses their weights directly.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.groups: list[list[nn.Linear]] = []
        self.bypassed: frozenset[int] = frozenset()
        self._ran: set[int] = set()
        self._parents = {
            id(child): id(module)
            for module in model.modules()
            for child in module.children()
            if type(child) is nn.Linear and child.weight.dtype in _DTYPES
        }
        self._layers = [child for child in model.modules() if id(child) in self._parents]
        with_layers = set(self._parents.values())
        self._modules = [module for module in model.modules() if id(module) in with_layers]
        self._open: tuple[int, int] | None = None
        self._input: torch.Tensor | None = None  # held, so that no other tensor gets its id
        self._called: dict[int, int] = {}

    def __enter__(self) -> SharedInputs:
        self._hooks = [layer.register_forward_pre_hook(self._saw) for layer in self._layers]
        self._hooks += [module.register_forward_pre_hook(self._saw_parent) for module in self._modules]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._open = self._input = None
        self._layers, self._modules = [], []  # only the groups keep layers, and with them their weights
        uncalled = self._parents.keys() - self._called.keys()
        self.bypassed = frozenset(layer for layer in uncalled if self._parents[layer] in self._ran)
        # A layer that is called several times in a pass belongs to none.
        self.groups = [g for g in self.groups if len(g) > 1 and all(self._called[id(layer)] == 1 for layer in g)]

    def _saw_parent(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._ran.add(id(module))

    def _saw(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        self._called[id(layer)] = self._called.get(id(layer), 0) + 1
        parent = self._parents[id(layer)]
        same_input = self._open == (parent, id(args[0]))
        if same_input and _stored_alike(self.groups[-1][0].weight, layer.weight):
            self.groups[-1].append(layer)
        else:
            self.groups.append([layer])
        self._open, self._input = (parent, id(args[0])), args[0]


def _stored_alike(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.dtype == y.dtype and kind_of(x) == kind_of(y)
