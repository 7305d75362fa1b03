"""A linear layer whose weight is in int8, with a scale for each output channel."""

from __future__ import annotations

import torch
from torch import nn

from roseplay.kernels.cpu.products import Products, default_products

try:
    from roseplay.kernels.cpu import int8
    from roseplay.kernels.cpu.tiles import STRIP
except ImportError:  # Numba is an extra
    int8 = None  # type: ignore[assignment]

_LARGEST = 127


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ``weight [out, in]`` rounded to int8, and the float32 scales ``[out]`` to multiply it by."""
    scales = weight.float().abs().amax(1) / _LARGEST
    inverse = torch.where(scales > 0, 1 / scales, 0.0)
    return (weight.float() * inverse[:, None]).round().to(torch.int8), scales


def saved_bytes(dtype: torch.dtype, inner: int, outer: int) -> int:
    """Returns how many fewer bytes a layer reads in int8 than in ``dtype``."""
    return inner * outer * (torch.empty(0, dtype=dtype).element_size() - 1) - 4 * outer


class Int8Linear(nn.Module):
    """A linear layer in int8 for CPUs.

    Our own products round x to int8 too (``int8``). On a CPU without the instructions for them, torch widens the weight
    and multiplies in float32.

    Args:
        weight: ``[out, in]``, float32 or bfloat16, on the CPU. It is copied.
        bias: ``[out]`` or None.
        products: how to multiply; None for this CPU's default.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, products: Products | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.products = products or default_products(weight.dtype, quantized=True)
        numbers, scales = quantize(weight.detach())
        self.strips = self.products.strips and int8 is not None
        padded = -(-self.out_features // STRIP) * STRIP if self.strips else self.out_features
        self.packed = int8.lay_out(numbers) if self.strips else numbers.contiguous()
        self.scales, self.bias = torch.zeros(padded), torch.zeros(padded)
        self.scales[: self.out_features] = scales
        if bias is not None:
            self.bias[: self.out_features] = bias.detach()
        # As in ``PackedLinear``.
        self.weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta")

    @property
    def used(self) -> str:
        """Describes how the layer multiplies."""
        return f"int8 by {self.products.used}" if self.strips else "int8, widened by torch"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = self.in_features, self.out_features
        if self.strips:
            return int8.multiply(x, self.packed, self.scales, self.bias, sizes, self.products.tiles_from)
        rows = x.reshape(-1, self.in_features).float()
        product = torch.ops.aten._weight_int8pack_mm(rows, self.packed, self.scales) + self.bias
        return product.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
