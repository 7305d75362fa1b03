"""Attention modules that normalise and rotate heads and write keys and values in one launch, between their projections
and attention.

A module keeps its own forward, with other globals: its rotary function and its norms of heads return their inputs, and
the attention function that it then looks up does their work. Whether anything else happens in between is found out by
running the module both ways when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from roseplay.kernels.cuda import rotary
from roseplay.kernels.cuda.attention.backend import TritonBackend
from roseplay.kernels.cuda.norms import FusedRMSNorm
from roseplay.kernels.cuda.rotate_append import fits, rotate_append
from roseplay.kernels.replace_modules import ROTARY, random_like, same, with_globals
from roseplay.model.attention.interface import AttentionParams, Paged, carried, roseplay_attention
from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache, LayerShape
from roseplay.model.layout import record_layout
from roseplay.model.padding import dummy_batch

_INTERFACES = "ALL_ATTENTION_FUNCTIONS"
_TRIAL_TOKENS = 3


def fuse_heads(model: PreTrainedModel, shapes: dict[int, LayerShape]) -> int:
    """Change attention modules so, if they then compute the same; returns their number.

    Args:
        shapes: what each layer caches, by ``layer_idx``.
    """
    undo = []
    for module in list(model.modules()):
        shape = shapes.get(getattr(module, "layer_idx", None))  # type: ignore[arg-type]
        restore = None if shape is None else _fuse(module, shape, next(model.parameters()))
        undo += [] if restore is None else [restore]
    try:
        record_layout(model)
    except Exception:  # the model calls them in another way than the trial, for example without positions to rotate to
        for restore in undo:
            restore()
        return 0
    return len(undo)


def _fuse(module: nn.Module, shape: LayerShape, like: torch.Tensor) -> Callable[[], None] | None:
    """Returns how to undo it; None if the module was left as it is."""
    forward = type(module).forward
    if not isinstance(forward, FunctionType) or not {ROTARY, _INTERFACES} <= set(forward.__code__.co_names):
        return None
    plain_rotary = forward.__globals__.get(ROTARY)
    if not isinstance(plain_rotary, FunctionType) or "forward" in vars(module):
        return None
    norms = {name: getattr(module, name, None) for name in ("q_norm", "k_norm")}
    later = {
        name: _Later(norm)
        for name, norm in norms.items()
        if isinstance(norm, FusedRMSNorm) and len(norm.weight) == shape.k_dim
    }
    heads = _Heads(plain_rotary, later.get("q_norm"), later.get("k_norm"))
    new = MethodType(with_globals(forward, {ROTARY: heads.rotate, _INTERFACES: heads}), module)
    trial = _Trial(module, shape, like)
    plain = trial.run(module.forward)
    for name, norm in later.items():
        setattr(module, name, norm)
    module.forward = new  # type: ignore[method-assign]

    def restore() -> None:
        del module.forward
        for name in later:
            setattr(module, name, norms[name])

    if plain is not None and trial.agree(plain, trial.run(new)):
        return restore
    restore()
    return None


class _Later(nn.Module):
    """Takes the place of a norm of heads, and leaves it to ``_Heads``."""

    def __init__(self, norm: FusedRMSNorm) -> None:
        super().__init__()
        self.norm = norm
        self.place = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.place = x.data_ptr()
        return x


class _Heads:
    """What one attention module calls in place of its rotary function, and to look up its attention function.

    Raises ``RuntimeError`` if the module does anything to queries or keys after the norms or after the rotation, which
    would have to happen after these: the trial at load finds such modules.
    """

    def __init__(self, plain_rotary: FunctionType, q_later: _Later | None, k_later: _Later | None) -> None:
        self._plain_rotary, self._later = plain_rotary, (q_later, k_later)
        self._norms = tuple(None if later is None else later.norm for later in self._later)
        self._rotary: tuple[torch.Tensor, ...] | None = None  # q, k, cos, sin of the call in progress

    def rotate(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **more: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if args or more:
            raise RuntimeError("it rotates in a way of its own")
        for x, later in zip((q, k), self._later, strict=True):
            if later is not None and later.place != x.data_ptr():
                raise RuntimeError("it changes queries or keys between their norm and the rotation")
        self._rotary = q, k, cos, sin
        return q, k

    def get_interface(self, *args: Any) -> Any:
        return self.attend

    def attend(
        self, module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **more: Any
    ) -> tuple[torch.Tensor, None]:
        """See ``roseplay_attention``."""
        rotated, self._rotary = self._rotary, None
        if rotated is None or rotated[0] is not q or rotated[1] is not k:
            raise RuntimeError("it changes queries or keys after the rotation")
        cos, sin = rotated[2:]
        paged: Paged | None = more.pop("paged", None) or carried()
        if paged is None:
            return self._attend_plainly(module, q, k, v, cos, sin, *args, **more)
        backend, batch = paged.backend, paged.batch
        fused = batch.batched_append and fits(q, k, v, cos, sin)
        if not isinstance(backend, TritonBackend) or not fused or backend.cache.scales:
            return self._attend_plainly(module, q, k, v, cos, sin, *args, paged=paged, **more)
        layer: Any = module.layer_idx
        keys, values = backend.cache.keys[layer], backend.cache.values[layer]
        q = rotate_append(q, k, v, cos, sin, self._norms, keys, values, batch.slot_mapping)
        return roseplay_attention(module, q, k, v, *args, paged=Paged(_Appended(backend), batch, paged.states), **more)

    def _attend_plainly(
        self, module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor,
        sin: torch.Tensor, *args: Any, **more: Any,
    ) -> tuple[torch.Tensor, None]:  # fmt: skip
        q, k = (x if norm is None else norm(x) for x, norm in zip((q, k), self._norms, strict=True))
        q, k = (rotary.rotate if rotary.fits(q, k, cos, sin) else self._plain_rotary)(q, k, cos, sin)
        return roseplay_attention(module, q, k, v, *args, **more)


class _Appended:
    """A backend whose keys and values have been appended already; ``attend`` does not read ``k`` and ``v``."""

    name = TritonBackend.name

    def __init__(self, backend: TritonBackend) -> None:
        self.attend = backend.attend

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        pass


class _TrialBackend(TritonBackend):
    """Appends, and keeps what it is asked to attend to."""

    def __init__(self, cache: KVCache) -> None:
        super().__init__(cache)
        self.asked: list[tuple[int, torch.Tensor, AttentionParams]] = []

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch, params: AttentionParams
    ) -> torch.Tensor:
        self.asked.append((layer, q, params))
        return q.new_zeros((*q.shape[:2], v.shape[2]))


class _Trial:
    """Runs an attention module on random inputs, up to what it attends to.

    Args:
        shape: what the module's layer caches.
        like: a tensor of the model's dtype and device.
    """

    def __init__(self, module: nn.Module, shape: LayerShape, like: torch.Tensor) -> None:
        self._shapes = {int(module.layer_idx): shape}  # type: ignore[arg-type]
        hidden_size = module.config.get_text_config().hidden_size  # type: ignore[operator, union-attr]
        self._hidden = random_like((1, _TRIAL_TOKENS, hidden_size), like) / hidden_size**0.5
        self._rotary = tuple(random_like((1, _TRIAL_TOKENS, shape.k_dim), like) + add for add in (0, 1))
        self._batch = dummy_batch(_TRIAL_TOKENS, row_tokens=_TRIAL_TOKENS, block_size=_TRIAL_TOKENS)

    @torch.inference_mode()
    def run(self, forward: Callable[..., Any]) -> _TrialBackend | None:
        """Returns the backend that the forward called; None if it takes other arguments or raises."""
        x = self._hidden
        cache = KVCache(self._shapes, num_blocks=1, block_size=_TRIAL_TOKENS, dtype=x.dtype, device=x.device)
        backend = _TrialBackend(cache)
        paged = Paged(backend, self._batch.upload(x.device))
        try:
            forward(hidden_states=x, position_embeddings=self._rotary, attention_mask=None, paged=paged)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return None
        return backend

    def agree(self, plain: _TrialBackend, new: _TrialBackend | None) -> bool:
        """Returns whether both attended to the same keys and values, with the same queries and in the same way."""
        if new is None or len(plain.asked) != 1 or len(new.asked) != 1:
            return False
        (layer, q, params), (new_layer, new_q, new_params) = plain.asked[0], new.asked[0]
        cached = ((x.cache.keys[layer], x.cache.values[layer]) for x in (plain, new))
        alike = layer == new_layer and params == new_params and same(q, new_q)
        return alike and all(same(*pair) for pair in zip(*cached, strict=True))
