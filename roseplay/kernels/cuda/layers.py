"""Decoder layers whose residual additions are in one Triton launch with the norms before and after them.

The last addition of a layer is in one launch with the first norm of the next layer, or with the model's last norm.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from roseplay.kernels.cuda.norms import FusedRMSNorm, add_norm, can_add
from roseplay.kernels.replace_modules import random_like, same
from roseplay.model.layout import record_layout

# Names of the norms before attention, after it, before the MLP and after it.
_NAMES = (
    ("input_layernorm", None, "post_attention_layernorm", None),  # Llama
    (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),  # Gemma 2
    ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),  # GLM-4
    (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),  # OLMo 2
)


@dataclass(frozen=True, slots=True)
class _Norms:
    """The norms of a layer; None where it has none."""

    before_attention: FusedRMSNorm | None
    after_attention: FusedRMSNorm | None
    before_mlp: FusedRMSNorm | None
    after_mlp: FusedRMSNorm | None


def fuse_layers(model: PreTrainedModel) -> int:
    """Give decoder layers a forward that adds and normalises in one launch, if it computes what their own does; returns
    their number.

    Layers keep their modules for attention and the MLP, their hooks, and all arguments.
    """
    fused = {}
    for module in model.modules():
        layer = FusedLayer.of(module, next(model.parameters()))
        if layer is not None:
            module.forward = layer.forward  # type: ignore[method-assign]
            fused[id(module)] = layer
    if fused:
        _find_next_norms(model, fused)
    return len(fused)


class FusedLayer:
    """A forward for a decoder layer: ``x += after(attention(before(x)))``, and the same with the MLP.

    Args:
        plain: the layer's own forward, for inputs that the kernel does not take.

    Attributes:
        next_norm: the norm whose input is this layer's output.
    """

    def __init__(self, module: nn.Module, plain: Callable[..., torch.Tensor], norms: _Norms) -> None:
        self._module: Any = module  # whose attributes are modules
        self._plain, self._norms = plain, norms
        self.next_norm: FusedRMSNorm | None = None

    @classmethod
    def of(cls, module: nn.Module, like: torch.Tensor) -> FusedLayer | None:
        """Returns the forward of a layer that consists of attention, an MLP and RMS norms around them; None for others."""
        children = dict(module.named_children())
        if not {"self_attn", "mlp"} <= children.keys() or "forward" in vars(module):
            return None
        around = {name: norm for name, norm in children.items() if isinstance(norm, FusedRMSNorm)}
        names = next((names for names in _NAMES if {name for name in names if name} == around.keys()), None)
        if names is None or len(children) != 2 + len(around):
            return None
        layer = cls(module, module.forward, _Norms(*(around[name] if name else None for name in names)))
        weight = next(iter(around.values())).weight
        return layer if _same_layer(module, layer, random_like((1, 3, len(weight)), weight)) else None

    def forward(self, hidden_states: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        if args or not can_add(hidden_states, hidden_states):
            return self._plain(hidden_states, *args, **more)
        norms, module = self._norms, self._module
        normed = hidden_states if norms.before_attention is None else norms.before_attention(hidden_states)
        attended, _ = module.self_attn(hidden_states=normed, **more)
        total, normed = add_norm(hidden_states, attended, norms.after_attention, norms.before_mlp)
        out, normed = add_norm(total, module.mlp(normed), norms.after_mlp, self.next_norm)
        if self.next_norm is not None:
            self.next_norm.expect(out, normed)
        return out


class _Stub(nn.Module):
    """Stands for attention or an MLP in a trial: reverses rows, and keeps the other arguments."""

    def __init__(self, attends: bool) -> None:
        super().__init__()
        self.attends = attends
        self.arguments: dict[str, Any] = {}

    def forward(self, hidden_states: torch.Tensor, **more: Any) -> Any:
        self.arguments = more
        reversed_rows = hidden_states.flip(-1) * 0.5
        return (reversed_rows, None) if self.attends else reversed_rows


@torch.inference_mode()
def _same_layer(module: nn.Module, layer: FusedLayer, x: torch.Tensor) -> bool:
    """Returns whether both compute the same around attention and the MLP, and pass the same arguments to them."""
    names = list(inspect.signature(type(module).forward).parameters)[2:]  # after self and the hidden states
    arguments = {name: object() for name in names if name not in ("args", "kwargs")} | {"paged": object()}
    parts = {name: module.get_submodule(name) for name in ("self_attn", "mlp")}
    results, passed = [], []
    try:
        for forward in (layer._plain, layer.forward):
            stubs = {"self_attn": _Stub(True), "mlp": _Stub(False)}
            _replace(module, stubs)
            results.append(forward(x, **arguments))
            passed.append([stub.arguments for stub in stubs.values()])
        return passed[0] == passed[1] and same(*results)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # another kind of layer
        return False
    finally:
        _replace(module, parts)


def _replace(module: nn.Module, parts: Mapping[str, nn.Module]) -> None:
    for name, part in parts.items():
        setattr(module, name, part)


def _find_next_norms(model: PreTrainedModel, layers: dict[int, FusedLayer]) -> None:
    """Run the model once, and set each layer's ``next_norm`` to the norm whose input is the layer's output."""
    outputs: dict[int, tuple[FusedLayer, torch.Tensor]] = {}  # holds outputs, so that no other tensor gets their ids

    def made(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        outputs[id(output)] = layers[id(module)], output

    def normed(norm: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(norm, FusedRMSNorm) and args and id(args[0]) in outputs:
            outputs[id(args[0])][0].next_norm = norm

    hooks = [m.register_forward_hook(made) for m in model.modules() if id(m) in layers]
    hooks += [m.register_forward_pre_hook(normed) for m in model.modules() if isinstance(m, FusedRMSNorm)]
    try:
        record_layout(model)
    finally:
        for hook in hooks:
            hook.remove()
