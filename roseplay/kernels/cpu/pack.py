"""Lays out weights once, at load, in the order in which matrix kernels read them: ``matmul``'s, or else oneDNN's.

``F.linear`` lays out its weight in every call, which for the few rows of a decode step takes about as long as the product
itself.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from roseplay.core.progress import Reporter
from roseplay.kernels.cpu.products import Choose, Products, choose, default_products
from roseplay.kernels.gated_mlp import GatedMLP
from roseplay.kernels.merge import Make, MergedLinear, MergedPart
from roseplay.model.block_tensor import kind_of
from roseplay.model.block_tensor import plain as plain_tensor
from roseplay.model.errors import refuse

try:
    from roseplay.kernels.cpu import matmul
    from roseplay.kernels.cpu.quants.linear import BlockEmbedding, BlockLinear
    from roseplay.kernels.cpu.quants.strips import Strips, rounded
    from roseplay.kernels.cpu.tiles import STRIP
except ImportError:  # Numba is an extra
    matmul = BlockLinear = None  # type: ignore[assignment, misc]

_DTYPES = (torch.float32, torch.bfloat16)
logger = logging.getLogger(__name__)


class PackedLinear(nn.Module):
    """A linear layer, ``[..., in]`` to ``[..., out]``, whose weight is in the layout of one kernel.

    Args:
        weight: ``[out, in]``, float32 or bfloat16, on the CPU. It is copied.
        bias: ``[out]`` or None.
        products: how to multiply; None for this CPU's default.

    Attributes:
        used: describes how it multiplies.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, products: Products | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        products = products or default_products(weight.dtype)
        self.strips = products.strips and matmul is not None and matmul.fits(weight)
        self.products, self.used, self.tiles_from = products, products.used, products.tiles_from
        if self.strips:
            self.packed = matmul.lay_out(weight.detach())
            self.bias: torch.Tensor | None = torch.zeros(len(self.packed) * STRIP)
            if bias is not None:
                self.bias[: self.out_features] = bias.detach()
        else:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
            self.bias = None if bias is None else bias.detach()
        # Some models read the dtype or shape of a layer's weight; its values are only in `packed`.
        self.weight = _on_meta(weight)

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
    kind: str | None = None,
    plain: frozenset[int] = frozenset(),
    choose: Choose = choose,
) -> int:
    """Replace a model's linear layers by packed ones; returns how many. Embeddings in quantized blocks become
    ``BlockEmbedding``, which share the blocks with a tied layer.

    The plain weights are freed one by one, except those that are referenced elsewhere: by a tied embedding, or a model
    that the caller holds.

    Args:
        together: layers with the same input, in the order in which they are called (``SharedInputs``).
        reporter: receives the progress, in layers.
        kind: type of the blocks to which plain weights are rounded, by ggml's names; None to keep them.
        plain: ids of layers that are left as they are (``SharedInputs.bypassed``).
        choose: chooses how layers of these sizes are multiplied.

    Raises ``UnsupportedModelError`` for a weight whose numbers ``kind`` cannot represent.
    """
    if not can_pack(model.device, model.dtype):
        return 0
    if kind is not None:
        _check_rounding(model, kind, plain)
    shared = _pack_embeddings(model)
    make = _maker(model.dtype, _linear_sizes(model, together, plain), kind, shared, choose)
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
                            layer.weight = nn.Parameter(_on_meta(layer.weight), requires_grad=False)
                    number = next(i for i, layer in enumerate(group) if layer is child)
                    setattr(module, name, MergedPart(merged[id(group)], number, child.weight))
            elif type(child) is Conv1D and child.weight.dtype in _DTYPES:
                setattr(module, name, make(child.weight.T, child.bias))
            else:
                continue
            packed += 1
            reporter.advance()
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if kind_of(weight) is not None:  # nothing takes it in blocks
                setattr(module, name, nn.Parameter(plain_tensor(weight), requires_grad=False))
    return packed


def _check_rounding(model: PreTrainedModel, kind: str, plain: frozenset[int]) -> None:
    """Raises ``UnsupportedModelError``, with its name, for a weight that cannot be rounded to blocks."""
    for name, layer in model.named_modules():
        if type(layer) not in (nn.Linear, Conv1D) or id(layer) in plain or kind_of(layer.weight) is not None:
            continue
        if bool((torch.stack(layer.weight.aminmax()).abs() <= torch.finfo(torch.float16).max).all()):  # not of NaN
            continue
        try:
            rounded((layer.weight.T if type(layer) is Conv1D else layer.weight).float().numpy(), kind)
        except OverflowError as error:
            why = f"{name}.weight has {error}, and cannot be rounded to {kind}: set quantization to none"
            raise refuse(model.name_or_path or type(model).__name__, why) from error


def saved_bytes(model: PreTrainedModel) -> int:
    """Returns how many bytes a step reads less because layers are in quantized blocks."""
    layers = packed_layers(model)
    return sum(layer.strips.saved_bytes for layer in layers if not isinstance(layer, PackedLinear))


def packed_layers(model: PreTrainedModel) -> list[PackedLinear | BlockLinear]:
    """Returns a model's packed layers, merged ones once."""
    kinds = PackedLinear if BlockLinear is None else (PackedLinear, BlockLinear)
    layers = (m.merged.linear if isinstance(m, MergedPart | GatedMLP) else m for m in model.modules())
    return list({id(layer): layer for layer in layers if isinstance(layer, kinds)}.values())


def _pack_embeddings(model: PreTrainedModel) -> dict[int, tuple[torch.Tensor, Strips]]:
    """Replace embeddings in quantized blocks; returns their weights with their strips, by the ids of the weights."""
    shared: dict[int, tuple[torch.Tensor, Strips]] = {}
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if not isinstance(child, nn.Embedding) or kind_of(child.weight) is None:
                continue
            weight = child.weight
            new = BlockEmbedding.of(child, shared[id(weight)][1] if id(weight) in shared else None)
            if new is not None:
                shared[id(weight)] = weight, new.strips
                setattr(module, name, new)
    return shared


def _maker(
    dtype: torch.dtype,
    sizes: Iterable[tuple[str | None, tuple[int, int]]],
    kind: str | None,
    shared: dict[int, tuple[torch.Tensor, Strips]],
    choose: Choose,
) -> Make:
    """Returns what makes a packed layer of a weight and a bias; ``sizes`` as ``_linear_sizes`` yields them."""
    by_kind = defaultdict[str | None, list[tuple[int, int]]](list)
    for stored, size in sizes:
        by_kind[stored or kind].append(size)
    chosen = {stored: choose(dtype, group, stored) for stored, group in by_kind.items()}
    for stored, products in chosen.items():
        logger.info("linear layers (%s) are multiplied by %s", stored or dtype, products)

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
        stored = kind_of(weight) or kind
        if stored is None:
            return PackedLinear(weight, bias, chosen[None])
        strips = shared[id(weight)][1] if id(weight) in shared else Strips(weight, stored)
        return BlockLinear(strips, bias, chosen[stored])

    return make


def _linear_sizes(
    model: PreTrainedModel, together: list[list[nn.Linear]], plain: frozenset[int]
) -> Iterator[tuple[str | None, tuple[int, int]]]:
    """Yields the kind of blocks and ``(in, out)`` of the products that a model's linear layers become; arguments as for
    ``pack_linears``."""
    grouped = {id(layer) for group in together for layer in group} | plain
    for group in together:
        yield kind_of(group[0].weight), (group[0].in_features, sum(layer.out_features for layer in group))
    for module in model.modules():
        if type(module) is nn.Linear and id(module) not in grouped:
            yield kind_of(module.weight), (module.in_features, module.out_features)
        elif type(module) is Conv1D:
            yield None, (module.nx, module.nf)


def _on_meta(weight: torch.Tensor) -> torch.Tensor:
    return torch.empty(weight.shape, dtype=weight.dtype, device="meta")
