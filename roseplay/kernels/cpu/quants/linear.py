"""Linear layers and embeddings whose weights are in quantized blocks."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from roseplay.kernels.cpu.products import Products
from roseplay.kernels.cpu.quants import product
from roseplay.kernels.cpu.quants.strips import STRIP, Strips
from roseplay.model.block_tensor import BlockTensor

_TRIED = 8  # rows


class BlockLinear(nn.Module):
    """A linear layer, ``[..., in]`` to ``[..., out]``.

    Args:
        bias: ``[out]`` or None.
        products: how to multiply.
    """

    def __init__(self, strips: Strips, bias: torch.Tensor | None, products: Products) -> None:
        super().__init__()
        self.out_features, self.in_features = strips.outer, strips.inner
        self.strips, self.products = strips, products
        self.bias = torch.zeros(len(strips.packed) * STRIP)
        if bias is not None:
            self.bias[: self.out_features] = bias.detach()
        # As in ``PackedLinear``.
        self.weight = torch.empty((strips.outer, strips.inner), dtype=strips.dtype, device="meta")

    @property
    def used(self) -> str:
        """Describes how the layer multiplies."""
        return f"{self.strips.kind} blocks by {self.products.used}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        strips = self.strips
        chosen = strips.form, self.bias, (strips.inner, strips.outer), self.products.tiles_from, self.products.ahead
        return product.multiply(x, strips.packed, *chosen)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, kind={self.strips.kind}"


class BlockEmbedding(nn.Module):
    """An embedding, whose rows are dequantized as they are looked up, and multiplied by ``scale``."""

    def __init__(self, strips: Strips, scale: float) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = strips.outer, strips.inner
        self.strips, self.scale = strips, scale
        self.weight = torch.empty((strips.outer, strips.inner), dtype=strips.dtype, device="meta")

    @classmethod
    def of(cls, plain: nn.Embedding, strips: Strips | None) -> BlockEmbedding | None:
        """Returns the replacement of an embedding in blocks; None if it does more than scale the rows of its weight.

        Args:
            strips: its weight's, if they exist already.
        """
        weight = plain.weight
        assert isinstance(weight, BlockTensor)
        scale = 1.0
        if type(plain) is not nn.Embedding:
            few = BlockTensor(weight.stored[:_TRIED], weight.kind, None, weight.dtype).dequantized()
            output = functional_call(plain, {"weight": few}, (torch.arange(_TRIED),))
            scale = float((output.float() * few.float()).sum() / few.float().square().sum())
            if not torch.allclose(output.float(), few.float() * scale, rtol=0.01):
                return None
        return cls(strips or Strips(weight, weight.kind), scale)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        strips = self.strips
        return product.look_up(ids, strips.packed, strips.form, strips.inner, self.scale, strips.dtype)
