"""Lays out weights once, at load, in the order in which matrix kernels read them: ``matmul``'s, or else oneDNN's.

``F.linear`` lays out its weight in every call, which for the few rows of a decode step takes about as long as the product
itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from roseplay.core.progress import Reporter
from roseplay.kernels.cpu.int8_linear import Int8Linear
from roseplay.kernels.cpu.products import Products, choose, default_products
from roseplay.kernels.merge import Make, MergedLinear, MergedPart

try:
    from roseplay.kernels.cpu import matmul
    from roseplay.kernels.cpu.tiles import STRIP
except ImportError:  # Numba is an extra
    matmul = None  # type: ignore[assignment]

_DTYPES = (torch.float32, torch.bfloat16)
logger = logging.getLogger(__name__)


class PackedLinear(nn.Module):
    """A linear layer, ``[..., in]`` to ``[..., out]``, whose weight is in the layout of one kernel.

    Args:
        weight: ``[out, in]``, float32 or bfloat16, on the CPU. It is copied.
        bias: ``[out]`` or None.
        products: how to multiply; None for this CPU's default.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, products: Products | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        products = products or default_products(weight.dtype)
        self.strips = products.strips and matmul is not None and matmul.fits(weight)
        self.products, self.tiles_from = products, products.tiles_from
        if self.strips:
            self.packed = matmul.lay_out(weight.detach())
            self.bias: torch.Tensor | None = torch.zeros(len(self.packed) * STRIP)
            if bias is not None:
                self.bias[: self.out_features] = bias.detach()
        else:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
            self.bias = None if bias is None else bias.detach()
        # Some models read the dtype or shape of a layer's weight; its values are only in `packed`.
        self.weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta")

    @property
    def used(self) -> str:
        """Describes how the layer multiplies."""
        return self.products.used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.strips and self.bias is not None:
            return matmul.multiply(x, self.packed, self.bias, self.out_features, self.tiles_from)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return product

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether this CPU has packed products for a dtype."""
    if device.type != "cpu" or dtype not in _DTYPES or not torch.backends.mkldnn.is_available():
        return False
    if not all(hasattr(torch.ops.mkldnn, op) for op in ("_reorder_linear_weight", "_linear_pointwise")):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@torch.no_grad()
def pack_linears(
    model: PreTrainedModel,
    together: list[list[nn.Linear]],
    reporter: Reporter | None = None,
    *,
    int8: bool = False,
    plain: frozenset[int] = frozenset(),
) -> int:
    """Replace a model's linear layers by packed ones; returns how many.

    The plain weights are freed one by one, except those that are referenced elsewhere: by a tied embedding, or a model
    that the caller holds.

    Args:
        together: layers with the same input, in the order in which they are called (``SharedInputs``).
        reporter: receives the progress, in layers.
        int8: round their weights to int8.
        plain: ids of layers that are left as they are (``SharedInputs.bypassed``).
    """
    if not can_pack(model.device, model.dtype):
        return 0
    products = choose(model.dtype, linear_sizes(model, together, plain), quantized=int8)
    logger.info("linear layers are multiplied by %s", products)
    make: Make = partial(Int8Linear if int8 else PackedLinear, products=products)
    groups = {id(layer): group for group in together for layer in group}
    merged: dict[int, MergedLinear] = {}
    packed, reporter = 0, reporter or Reporter()
    reporter.expect(sum(type(m) in (nn.Linear, Conv1D) and id(m) not in plain for m in model.modules()))
    parents = [module for module in model.modules() if any(True for _ in module.children())]  # not layers
    for module in parents:
        for name, child in list(module.named_children()):
            if id(child) in plain:
                continue
            # Not subclasses, which may do more than multiply.
            if type(child) is nn.Linear and child.weight.dtype in _DTYPES:
                group = groups.get(id(child))
                if group is None:
                    setattr(module, name, make(child.weight, child.bias))
                else:
                    if id(group) not in merged:
                        merged[id(group)] = MergedLinear(group, make)
                        for layer in group:  # which the caller's list keeps
                            layer.weight = nn.Parameter(layer.weight.to("meta"), requires_grad=False)
                    number = next(i for i, layer in enumerate(group) if layer is child)
                    setattr(module, name, MergedPart(merged[id(group)], number, child.weight))
            elif type(child) is Conv1D and child.weight.dtype in _DTYPES:
                setattr(module, name, make(child.weight.T, child.bias))
            else:
                continue
            packed += 1
            reporter.advance()
    return packed


def linear_sizes(
    model: PreTrainedModel, together: list[list[nn.Linear]], plain: frozenset[int] = frozenset()
) -> Iterator[tuple[int, int]]:
    """Yields ``(in, out)`` of the products that a model's linear layers become; arguments as for ``pack_linears``."""
    grouped = {id(layer) for group in together for layer in group} | plain
    for group in together:
        yield group[0].in_features, sum(layer.out_features for layer in group)
    for module in model.modules():
        if type(module) is nn.Linear and id(module) not in grouped:
            yield module.in_features, module.out_features
        elif type(module) is Conv1D:
            yield module.nx, module.nf
