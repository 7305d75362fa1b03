"""Merges linear layers with the same input: q, k and v, gate and up. Each is one matrix product on a GPU, not two or three."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from roseplay.kernels.merge import MergedLinear, MergedPart
from roseplay.kernels.replace_modules import replace_modules
from roseplay.model import gpu_memory

_ALIGNMENT = 16  # bytes: of matrix products and of the kernels that read their parts


@torch.no_grad()
def merge_linears(model: PreTrainedModel, groups: list[list[nn.Linear]]) -> int:
    """Replace each group of layers by parts of one product; returns how many layers.

    The weights of the parts become views of the merged one, so that they take no more memory, unless they are referenced
    elsewhere, such as by a model in memory from which this one was loaded. Groups in which a part would not begin at a
    multiple of 16 bytes are left out.
    """
    parts: dict[int, MergedPart] = {}
    for group in groups:
        if not _fits(group):
            continue
        merged = MergedLinear(group, _linear)
        views = merged.linear.weight.split(merged.sizes)  # type: ignore[operator, union-attr]
        for number, (layer, view) in enumerate(zip(group, views, strict=True)):
            layer.weight = nn.Parameter(view, requires_grad=False)
            layer.register_parameter("bias", None)
            parts[id(layer)] = MergedPart(merged, number, layer.weight)
        if model.device.type == "cuda":
            gpu_memory.empty_cache()  # after every group, so that at most one of them takes its memory twice
    replace_modules(model, lambda module: parts.get(id(module)))
    return len(parts)


def _fits(group: list[nn.Linear]) -> bool:
    rows = (layer.out_features * layer.weight.element_size() for layer in group)
    return all(size % _ALIGNMENT == 0 for size in rows) and len({layer.weight.dtype for layer in group}) == 1


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
