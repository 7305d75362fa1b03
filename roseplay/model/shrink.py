"""Shrinks a transformers config: few layers of each kind, few heads, a small vocabulary and small windows."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from typing import Any

from transformers import DynamicCache

from roseplay.model.stateful import keeps_states

VOCABULARY, WINDOW, MOST_LAYERS, MOST_STATEFUL_LAYERS = 256, 8, 8, 16

_ALIASES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
}
_LENGTHS = ("window", "chunk_size", "floor_scale")  # number of tokens after which attention changes
_KV_HEADS = ("num_key_value_heads", "kv_n_heads")
_FEED_FORWARD = ("intermediate_size", "intermediate_size_mlp", "ffn_dim", "n_inner", "ffn_hidden_size")
# Settings of layers whose heads together are as wide as a multiple of the hidden size (Mamba-2).
_MAMBA = {
    "heads": ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"),
    "dim": ("mamba_d_head", "mamba_head_dim", "mamba_headdim"),
    "expand": ("mamba_expand", "expand"),
    "groups": ("mamba_n_groups", "mamba_ngroups", "n_groups"),
}
_NESTED = ("attn_config", "ffn_config")  # nested configs that apply to all layers (DBRX)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "zero_expert_num")


def shrink(config: Any, *, widths: bool) -> Any:
    """Returns a copy of a config with few layers of each kind, a small vocabulary and small windows.

    Args:
        widths: whether to keep only few heads and experts, too.
    """
    values = config.to_dict()
    for part in [values, *(v for v in values.values() if isinstance(v, dict) and _find(v, "layers"))]:
        _shrink_layers(part)
        if widths:
            _shrink_widths(part)
        for key, value in part.items():
            if key.endswith(("_token_id", "_token_index")):
                if isinstance(value, list) or (isinstance(value, int) and value >= VOCABULARY):
                    part[key] = VOCABULARY - 1
            elif any(word in key for word in _LENGTHS) and "layers" not in key and _is_size(value):
                part[key] = min(value, WINDOW)
        for key in ("vocab_size", "vocab_size_per_layer_input"):
            if _is_size(part.get(key)):
                part[key] = VOCABULARY
    values.pop("quantization_config", None)
    return _with_each_state(config, values) if keeps_states(config) else type(config).from_dict(values)


def _with_each_state(config: Any, values: dict[str, Any]) -> Any:
    """Returns a config of ``values`` with as many layers as it takes to have each kind of layer that ``config`` has."""
    names = {field.name for field in dataclasses.fields(config)} | {*inspect.signature(type(config)).parameters}
    values = {key: value for key, value in values.items() if key in names}  # the config computes the others from these
    lists = {key: value for key, value in config.to_dict().items() if isinstance(value, list) and key in names}
    layers = _find(values, "layers")
    if layers is None:
        return type(config).from_dict(values)
    old: int = getattr(config, layers)
    for number in range(values[layers], min(MOST_STATEFUL_LAYERS, old) + 1):
        cut = {key: value[:number] for key, value in lists.items() if len(value) == old}
        small = type(config).from_dict(copy.deepcopy(values) | {layers: number} | cut)
        if _kinds_of_layers(small) == _kinds_of_layers(config):
            break
    return small


def _kinds_of_layers(config: Any) -> set[type]:
    return {type(layer) for layer in DynamicCache(config=config).layers}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _find(part: dict[str, Any], what: str, aliases: dict[str, tuple[str, ...]] = _ALIASES) -> str | None:
    return next((name for name in aliases[what] if _is_size(part.get(name))), None)


def _shrink_layers(part: dict[str, Any]) -> None:
    """Keep few layers, one of each kind among them, in every setting that has a value for each layer."""
    layers = _find(part, "layers")
    if layers is None:
        return
    old: int = part[layers]
    stack: Any = part.get("num_layers_per_stack")
    if _is_size(stack):  # layers that run several times and are counted each time
        part.update({"num_layers_per_stack": 2, layers: 2 * old // stack})
        return
    lists = {key: value for key, value in part.items() if isinstance(value, list) and len(value) == old > 1}
    changes = {int(layer): value for layer, value in (part.get("per_layer_config") or {}).items()}
    kinds = [*lists.values(), [changes.get(layer) for layer in range(old)]]
    shared = part.get("num_kv_shared_layers") or 0
    # The last layers read others' keys: both groups need each kind; some families fix the kind of the last layer.
    if shared:
        kept = sorted({*_firsts(kinds, 0, old - shared), *_firsts(kinds, old - shared, old), old - 1})
        part["num_kv_shared_layers"] = sum(layer >= old - shared for layer in kept)
    else:  # the first ones, since some patterns count from there; four, so that layers of one kind are adjacent
        patterns = [v for key, v in part.items() if ("pattern" in key or key.endswith("_step")) and _is_size(v)]
        kept = list(range(min(old, MOST_LAYERS, max([4, _firsts(kinds, 0, old)[-1] + 1, *patterns]))))
    part[layers] = len(kept)
    part.update({key: [value[layer] for layer in kept] for key, value in lists.items()})
    if changes:
        part["per_layer_config"] = {i: changes[layer] for i, layer in enumerate(kept) if layer in changes}
    for key in ("first_k_dense_replace", "max_window_layers"):
        if _is_size(part.get(key)):
            part[key] = min(part[key], 1)


def _firsts(kinds: list[list[Any]], begin: int, end: int) -> list[int]:
    """Returns the first layer of each kind from ``begin`` to ``end``, and always the first two of these layers."""
    firsts = {begin, min(begin + 1, end - 1)}
    for values in kinds:
        layers: dict[str, int] = {}
        for layer in range(begin, end):
            layers.setdefault(repr(values[layer]), layer)
        firsts.update(layers.values())
    return sorted(firsts)


def _shrink_widths(part: dict[str, Any]) -> None:
    """Keep few heads and experts, and narrow feed-forward layers; also in the settings of single layers."""
    heads, hidden = _find(part, "heads"), _find(part, "hidden")
    if heads is None or hidden is None:
        return
    old_heads: int = part[heads]
    nested = [value for key, value in part.items() if key in _NESTED and isinstance(value, dict)]
    kv_places = [(where, key) for where in (part, *nested) for key in _KV_HEADS if _is_size(where.get(key))]
    kv_heads = min((where[key] for where, key in kv_places), default=old_heads)
    head_dim = part.get("head_dim") or part[hidden] // old_heads
    new_kv = min(kv_heads, 2)
    part[heads] = new_kv * min(old_heads // kv_heads, 4)
    old_hidden, part[hidden] = part[hidden], part[heads] * head_dim
    if _is_size(part.get("attention_hidden_size")):
        part["attention_hidden_size"] = part["attention_hidden_size"] * part[hidden] // old_hidden
    for where, key in kv_places:
        where[key] = new_kv
    for changes in (part.get("per_layer_config") or {}).values():
        _shrink_layer_widths(changes, old_heads, part[heads], new_kv)
    _shrink_linear_attention(part)
    _shrink_mamba(part, part[hidden])
    for where in (part, *nested):
        _shrink_feed_forward(where)


def _shrink_linear_attention(part: dict[str, Any]) -> None:
    keys, values = part.get("linear_num_key_heads"), part.get("linear_num_value_heads")
    if isinstance(keys, int) and isinstance(values, int):
        part["linear_num_key_heads"] = min(keys, 2)
        part["linear_num_value_heads"] = min(keys, 2) * (values // keys)
    if _is_size(part.get("linear_num_heads")):
        part["linear_num_heads"] = min(part["linear_num_heads"], 2)


def _shrink_mamba(part: dict[str, Any], hidden_size: int) -> None:
    """Choose the heads of Mamba-2 layers so that together they are as wide as the layers."""
    heads, dim, expand, groups = (_find(part, what, _MAMBA) for what in ("heads", "dim", "expand", "groups"))
    if heads is None or dim is None or expand is None:
        return
    width, several = part[expand] * hidden_size, part[groups] if groups else 1
    if _is_size(part.get("mamba_d_ssm")):  # the same width, stored separately (Falcon-H1)
        part["mamba_d_ssm"] = width
    if width % (part[dim] * several):
        part[heads] = max(several, part[heads] // several * several if width % part[heads] == 0 else several)
        part[dim] = width // part[heads]
    else:
        part[heads] = width // part[dim]


def _shrink_feed_forward(part: dict[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, list) and key.endswith("intermediate_size"):
            part[key] = [min(size, 64) for size in value]
        elif key.endswith(_FEED_FORWARD) and _is_size(value):
            part[key] = min(value, 64)
        elif key in _EXPERTS and _is_size(value):
            part[key] = min(value, max(8, 2 * (part.get("n_group") or 1)))
        elif key in ("num_experts_per_tok", "moe_k", "moe_topk") and _is_size(value):
            part[key] = min(value, 4)


def _shrink_layer_widths(changes: dict[str, Any], old_heads: int, new_heads: int, new_kv: int) -> None:
    """Shrink the settings that one layer overrides."""
    heads = changes.get("num_attention_heads")
    if heads:  # in proportion, and divisible by the number of key heads
        new_heads = changes["num_attention_heads"] = max(new_kv, new_heads * heads // old_heads // new_kv * new_kv)
    if changes.get("num_key_value_heads"):
        fits = min(changes["num_key_value_heads"], new_kv)
        changes["num_key_value_heads"] = fits if new_heads % fits == 0 else 1
    _shrink_feed_forward(changes)
