"""Weights laid out once, at load, in the order that the CPU's matrix kernels read them (oneDNN).

``F.linear`` lays its weight out anew on every call, which for the few rows of a decode step costs about as much as the
product itself. On two EPYC cores a packed product of 8 rows took half to two thirds of the time.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

_DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear(nn.Module):
    """``x [..., in] -> [..., out]`` with a weight that only oneDNN can read.

    Args:
        weight: ``[out, in]``, float32 or bfloat16, on the CPU. It is copied.
        bias: ``[out]`` or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self.bias = None if bias is None else bias.detach()
        # Some models ask a layer's weight for its dtype or shape; its values are in `packed` alone.
        self.weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return product

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch and this CPU have packed products for a dtype."""
    if device.type != "cpu" or dtype not in _DTYPES or not torch.backends.mkldnn.is_available():
        return False
    if not all(hasattr(torch.ops.mkldnn, op) for op in ("_reorder_linear_weight", "_linear_pointwise")):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@torch.no_grad()
def pack_linears(model: PreTrainedModel) -> int:
    """Replace a model's linear layers by packed ones; returns how many.

    The plain weights are let go one by one, unless something else holds them: a tied embedding, or the model's owner.
    """
    if not can_pack(model.device, model.dtype):
        return 0
    packed = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            # Subclasses may do more than multiply.
            if type(child) is nn.Linear and child.weight.dtype in _DTYPES:
                setattr(module, name, PackedLinear(child.weight, child.bias))
            elif type(child) is Conv1D and child.weight.dtype in _DTYPES:
                setattr(module, name, PackedLinear(child.weight.T, child.bias))
            else:
                continue
            packed += 1
    return packed
