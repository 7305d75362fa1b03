"""Splits a model over processes by the tensor parallel plan that transformers has for its family.

A plan names modules and how each is split. Here a split layer stays a plain ``nn.Linear`` with its part of the
weight, so that kernels treat it like any other; modules around it exchange data with the other processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from roseplay.model.errors import UnsupportedModelError, refuse
from roseplay.model.ranks import Ranks
from roseplay.model.stateful import keeps_states

# Styles of a plan that change nothing here: the module stays whole on every process, or they concern only training.
WHOLE = frozenset(
    {"replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "local_params", "embedding_rowwise",
     "embedding_colwise"}
)  # fmt: skip
GATHERED = frozenset({"colwise_gather_output", "colwise_rep"})
TAKES_ALL = frozenset({"rowwise_split_input", "rowwise_rep"})
SUMMED = frozenset({"moe_tp_experts", "all_reduce"})
_HEADS = (("num_attention_heads", "attention heads"), ("num_key_value_heads", "key and value heads"))


def check_plan(config: Any, size: int, *, name: str) -> None:
    """Raises ``UnsupportedModelError`` if a model of this config cannot be split over ``size`` processes."""
    if keeps_states(config):
        raise _cannot(name, size, f"the recurrent layers of {config.model_type} are not split here", 1)
    text = config.get_text_config()
    plan = getattr(text, "base_model_tp_plan", None) or {}
    if WHOLE.issuperset(plan.values()):
        raise _cannot(name, size, f"transformers has no tensor parallel plan for {config.model_type}", 1)
    if any(style == "colwise" and "att" in key.rpartition(".")[0] for key, style in plan.items()):
        for attribute, what in _HEADS:
            heads = getattr(text, attribute, None)
            if isinstance(heads, int) and heads % size:
                most = max(n for n in range(1, size) if heads % n == 0)
                raise _cannot(name, size, f"its {heads} {what} cannot be divided by {size}", most)


def _cannot(name: str, size: int, why: str, most: int) -> UnsupportedModelError:
    return refuse(name, f"tensor_parallel_size is {size}, and {why}; set it to {most}")


def shard(model: PreTrainedModel, ranks: Ranks, *, name: str) -> PreTrainedModel:
    """Reduce a model to this process's part and move it to its device; its forward then exchanges data by ``ranks``.

    Embeddings stay whole, and so does an output layer that does not divide evenly; everything else must divide.

    Raises ``UnsupportedModelError`` if the model cannot be split.
    """
    splitter = _Splitter(model, ranks, name)
    plan: Mapping[str, str] = model.tp_plan or {}
    for path, module in list(model.named_modules()):
        for parameter, _ in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            style = plan.get(_wildcards(f"{path}.{parameter}"))
            if style is not None:
                splitter.split_parameter(module, parameter, style, path)
        style = plan.get(_wildcards(path))
        if style is not None:
            new = splitter.split_module(module, style, path)
            if new is not module:
                parent, _, child = path.rpartition(".")
                setattr(model.get_submodule(parent), child, new)
    return model.to(ranks.device)


def _wildcards(path: str) -> str:
    """Returns a module's path as plans write it, with ``*`` in place of layer numbers."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


class _SplitLinear(nn.Module):
    """This process's part of a linear layer."""

    def __init__(self, linear: nn.Linear, ranks: Ranks) -> None:
        super().__init__()
        self.linear, self._ranks = linear, ranks

    @property
    def weight(self) -> torch.Tensor:
        """Some models read its dtype."""
        weight: torch.Tensor = self.linear.weight
        return weight


class RowParallel(_SplitLinear):
    """A linear layer that is split by its inputs: each process multiplies its own part, and the products are summed.

    Args:
        linear: this process's part, without the bias.
        bias: ``[out]``, added after the sum; or None.
        takes_all: whether ``forward`` receives the whole input; else it receives this process's part.
    """

    def __init__(self, linear: nn.Linear, bias: nn.Parameter | None, ranks: Ranks, *, takes_all: bool) -> None:
        super().__init__(linear, ranks)
        self.bias, self._takes_all = bias, takes_all

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._takes_all:
            x = x.chunk(self._ranks.size, -1)[self._ranks.rank].contiguous()
        whole = self._ranks.sum(self.linear(x))
        return whole if self.bias is None else whole + self.bias


class GatheredLinear(_SplitLinear):
    """A linear layer that is split by its outputs, which are gathered on every process."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._ranks.gather(self.linear(x))


class _Splitter:
    """Splits modules and parameters of one model."""

    def __init__(self, model: PreTrainedModel, ranks: Ranks, name: str) -> None:
        self._ranks, self._name, self._kind = ranks, name, model.config.model_type
        self._embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}

    def split_module(self, module: nn.Module, style: str, path: str) -> nn.Module:
        """Split a module; returns the module to put in its place, which may be itself."""
        ranks = self._ranks
        if style in SUMMED:
            module.register_forward_hook(lambda module, args, output: ranks.sum(output))
            return module
        if style in WHOLE:
            return module
        if not isinstance(module, nn.Linear):
            raise self._unknown(style, path)
        if style in GATHERED and module.out_features % ranks.size == 0:
            self._split_outputs(module, path)
            return GatheredLinear(module, ranks)
        if style in TAKES_ALL and module.in_features % ranks.size == 0:
            return self._split_inputs(module, path, takes_all=True)
        if style in GATHERED | TAKES_ALL:
            return module
        if style == "rowwise":
            return self._split_inputs(module, path, takes_all=False)
        if style in ("colwise", "packed_colwise"):
            self._split_outputs(module, path, 2 if style == "packed_colwise" else 1)
            return module
        raise self._unknown(style, path)

    def split_parameter(self, module: nn.Module, parameter: str, style: str, path: str) -> None:
        """Split a parameter that a plan names by itself, such as the stacked weights of experts ``[experts, out, in]``."""
        whole, path = module.get_parameter(parameter), f"{path}.{parameter}"
        if style in WHOLE:
            return
        if whole.ndim < 2 or isinstance(module, nn.Linear):
            raise self._unknown(style, path)
        dims = {"colwise": (-2, 1), "packed_colwise": (-2, 2), "rowwise": (-1, 1), "packed_rowwise": (-1, 2)}
        if style not in dims:
            raise self._unknown(style, path)
        setattr(module, parameter, self._part(whole, *dims[style], path))

    def _split_outputs(self, linear: nn.Linear, path: str, blocks: int = 1) -> None:
        linear.weight = self._part(linear.weight, 0, blocks, path)
        if linear.bias is not None:
            linear.bias = self._part(linear.bias, 0, blocks, path)
        linear.out_features = linear.weight.shape[0]

    def _split_inputs(self, linear: nn.Linear, path: str, *, takes_all: bool) -> RowParallel:
        linear.weight = self._part(linear.weight, 1, 1, path)
        linear.in_features = linear.weight.shape[1]
        bias = linear.bias
        linear.register_parameter("bias", None)
        return RowParallel(linear, bias, self._ranks, takes_all=takes_all)

    def _part(self, whole: torch.Tensor, dim: int, blocks: int, path: str) -> nn.Parameter:
        """Returns this process's part of a weight that consists of ``blocks`` equal blocks along dimension ``dim``."""
        size = whole.shape[dim]
        if size % (blocks * self._ranks.size):
            why = f"{size} numbers of {path} cannot be divided by {self._ranks.size}"
            raise _cannot(self._name, self._ranks.size, why, 1)
        parts = [block.chunk(self._ranks.size, dim)[self._ranks.rank] for block in whole.detach().chunk(blocks, dim)]
        # An embedding's table is kept anyway, so its rows can be shared. Any other weight is copied, to free the rest.
        shared = id(whole) in self._embeddings and blocks == 1 and parts[0].is_contiguous()
        part = parts[0] if shared else torch.cat(parts, dim).clone(memory_format=torch.contiguous_format)
        return nn.Parameter(part, requires_grad=False)

    def _unknown(self, style: str, path: str) -> UnsupportedModelError:
        why = f"the plan of {self._kind} splits {path} in a way that is not known here ({style})"
        return _cannot(self._name, self._ranks.size, why, 1)
