"""Multi-head latent attention (MLA, DeepSeek-V2) on cached latents instead of the keys and values of each head.

A layer of MLA projects each token to a latent and to a rotary key that all heads share, and expands the latent to each
head's key and value by one matrix. The product of a query with an expanded key is that of the latent with the query times
the key's half of the matrix. So queries are multiplied by it, attend to the latents as to the keys and values of a single
KV head, and the results are multiplied by the value's half. The cache then holds 576 numbers per token, where the expanded
keys and values of DeepSeek-V2-Lite are 5,120, and those of V3 40,960.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_EXPAND, _PROJECTION = "expand_kv", "kv_b_proj"  # the method and the matrix of transformers' modules
_SIZES = "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
_TOKENS = 3  # of the trial
_TOLERANCE = 16  # machine epsilons, of the norm: the two ways round different intermediate results


class LatentProjection(nn.Module):
    """The matrix that expands latents, which is applied to queries and results instead.

    Its halves are copied into the order in which products read them: along the numbers that are summed up.

    Args:
        weight: ``[heads * (nope_dim + v_dim), rank]``, for each head the rows of its key and those of its value.
        nope_dim: numbers of a head's query and key that have no rotary embedding; ``v_dim``: numbers of its value.

    Attributes:
        key: ``[heads, rank, nope_dim]``; ``value``: ``[heads, v_dim, rank]``.
    """

    def __init__(self, weight: torch.Tensor, nope_dim: int, v_dim: int) -> None:
        super().__init__()
        key, value = weight.view(-1, nope_dim + v_dim, weight.shape[1]).split((nope_dim, v_dim), 1)
        self.key = nn.Parameter(key.transpose(1, 2).contiguous(), requires_grad=False)
        self.value = nn.Parameter(value.contiguous(), requires_grad=False)

    def queries(self, q: torch.Tensor) -> torch.Tensor:
        """Returns the queries of latents, ``[tokens, heads, rank + rope_dim]``, for those of expanded keys,
        ``[tokens, heads, nope_dim + rope_dim]``."""
        nope_dim = self.key.shape[2]
        nope, rope = q.split((nope_dim, q.shape[-1] - nope_dim), -1)
        return torch.cat((torch.bmm(nope.transpose(0, 1), self.key.transpose(1, 2)).transpose(0, 1), rope), -1)

    def values(self, latents: torch.Tensor) -> torch.Tensor:
        """Returns ``[tokens, heads, v_dim]`` for each head's mean of latents, ``[tokens, heads, rank]``."""
        return torch.bmm(latents.transpose(0, 1), self.value.transpose(1, 2)).transpose(0, 1)


def projections(model: nn.Module) -> dict[Any, LatentProjection]:
    """Returns the projection of each attention module that has one and expands latents by it alone, which a trial on random
    numbers shows."""
    pairs = ((module, _projection(module)) for module in model.modules())
    return {module: projection for module, projection in pairs if projection is not None}


def keep_expanded(module: Any, kept: dict[Any, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Make a module note the keys and values that it expands, until ``expand_as_before``."""
    expand = getattr(module, _EXPAND)

    def noting(*latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept[module] = expand(*latents)
        return kept[module]

    setattr(module, _EXPAND, noting)


def expand_as_before(module: Any) -> None:
    delattr(module, _EXPAND)


def pass_latents(module: Any, projection: LatentProjection) -> None:
    """Make a module pass its latents to the attention function as the keys and values of one head (``attend_latents``)."""
    setattr(module, _PROJECTION, projection)
    setattr(module, _EXPAND, _as_one_head)


def _as_one_head(latent: torch.Tensor, rotary_key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns keys ``[1, 1, tokens, rank + rope_dim]``, and values, which are the first ``rank`` numbers of the keys."""
    keys = torch.cat((latent, rotary_key), -1)
    return keys, keys[..., : latent.shape[-1]]


def _projection(module: Any) -> LatentProjection | None:
    linear, sizes = getattr(module, _PROJECTION, None), [getattr(module, name, None) for name in _SIZES]
    if type(linear) is not nn.Linear or linear.bias is not None or not callable(getattr(module, _EXPAND, None)):
        return None
    if not all(isinstance(size, int) for size in sizes):
        return None
    rank, nope_dim, rope_dim, v_dim = sizes
    if linear.weight.shape[1] != rank or linear.weight.shape[0] % (nope_dim + v_dim):
        return None
    projection = LatentProjection(linear.weight, nope_dim, v_dim)
    return projection if _agrees(module, projection, rope_dim) else None


@torch.inference_mode()
def _agrees(module: Any, projection: LatentProjection, rope_dim: int) -> bool:
    """Returns whether queries and results of latents are those of expanded keys and values, for random numbers."""
    weight = projection.key
    heads, rank, nope_dim = weight.shape
    generator = torch.Generator(weight.device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=weight.device).to(weight.dtype)

    latent, rotary_key = random(1, 1, _TOKENS, rank), random(1, 1, _TOKENS, rope_dim)
    q = random(_TOKENS, heads, nope_dim + rope_dim)
    try:
        keys, values = getattr(module, _EXPAND)(latent, rotary_key)
        expected = (q.transpose(0, 1) @ keys[0].transpose(1, 2), values[0])
        scores = projection.queries(q).transpose(0, 1) @ torch.cat((latent, rotary_key), -1)[0].transpose(1, 2)
        results = projection.values(latent[0].expand(heads, -1, -1).transpose(0, 1)).transpose(0, 1)
    except (RuntimeError, TypeError, ValueError):
        return False
    return all(_near(*pair) for pair in zip(expected, (scores, results), strict=True))


def _near(expected: torch.Tensor, found: torch.Tensor) -> bool:
    difference = (expected.float() - found.float()).norm()
    return bool(difference <= _TOLERANCE * torch.finfo(expected.dtype).eps * expected.float().norm())
