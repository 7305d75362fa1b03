"""The sizes of a model that decide how long its steps take, read from its ``config.json`` as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from roseplay.extras.simulation.gpus import SimulationError
from roseplay.model.checkpoint_json import decoder_config
from roseplay.model.context_length import stated_length
from roseplay.model.errors import UnsupportedModelError

# Bytes of a stored weight. Four-bit formats have a scale for every 16 (fp4) or 128 (int4) weights.
WEIGHT_BYTES: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "int4": 0.516}
# Families whose feed-forward layers have two matrices; those of all others have a gate, and three.
_UNGATED = frozenset(
    "gpt2 gpt_neo gpt_neox gptj opt phi bloom falcon mpt codegen starcoder2 gpt_bigcode nemotron xglm biogpt".split()
)
_METHODS = {"fp8": "fp8", "compressed-tensors": "fp8", "fbgemm_fp8": "fp8", "modelopt": "fp8", "mxfp4": "fp4"}
_OTHER_LAYERS = ("linear_attention", "mamba", "recurrent", "conv")
# Kinds of recurrent layers by the beginnings of their sizes, for families that do not list the kinds of their layers.
_OTHER_SIZES = {
    **dict.fromkeys(("ssm_", "mamba_", "hybrid_override_pattern"), "mamba"),
    **dict.fromkeys(("lru_width", "rwkv"), "recurrent"),
    "linear_num_key_heads": "linear_attention",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder's sizes. Counts of parameters leave out norms and biases.

    Attributes:
        weights: format of the weights, a key of ``WEIGHT_BYTES``; embedding and output layer are always bf16.
        kv: format of the KV cache, bf16 or fp8.
        layers, hidden, heads, kv_heads: numbers of layers, of features, and of heads.
        k_dim, v_dim: features of a head's key and value, as multiplied.
        kv_numbers: numbers that one layer caches per token.
        latent: whether it caches one latent vector for all heads (MLA), which tensor parallelism does not divide.
        dense: parameters of all layers that every token uses, without embedding and output layer.
        experts, experts_per_token: experts of a layer, and how many of them a token uses; 0 if it has none.
        expert: parameters of one expert.
        expert_layers: layers with experts.
        embedding, output: parameters of the embedding and of the output layer, which may be the same (``tied``).
        max_len: context length in tokens.
        unmodelled: what of the model the costs leave out, in words; empty if nothing.
    """

    name: str
    architecture: str
    weights: str
    kv: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    kv_numbers: int
    latent: bool
    dense: int
    experts: int = 0
    experts_per_token: int = 0
    expert: int = 0
    expert_layers: int = 0
    vocab: int
    embedding: int
    output: int
    tied: bool
    max_len: int
    unmodelled: str = ""

    @property
    def num_parameters(self) -> int:
        return self.in_layers + self.embedding + (0 if self.tied else self.output)

    @property
    def in_layers(self) -> int:
        """Parameters of all layers with all experts."""
        return self.dense + self.expert_layers * self.experts * self.expert

    @property
    def active(self) -> int:
        """Parameters of all layers that one token uses."""
        return self.dense + self.expert_layers * self.experts_per_token * self.expert

    @property
    def stored_bytes(self) -> int:
        """Bytes of all weights in memory."""
        return int(self.in_layers * WEIGHT_BYTES[self.weights]) + 2 * (self.num_parameters - self.in_layers)

    def bytes_read(self, tokens: float) -> float:
        """Returns the bytes of weights that a step of ``tokens`` tokens reads.

        Of a mixture, those are the experts that at least one token uses, if each token draws its experts at random.
        """
        read = float(self.dense)
        if self.experts:
            missed = (1 - self.experts_per_token / self.experts) ** tokens
            read += self.expert_layers * self.experts * (1 - missed) * self.expert
        return read * WEIGHT_BYTES[self.weights] + 2 * self.output

    def kv_bytes_per_token(self, tensor_parallel: int = 1) -> int:
        """Returns the bytes of one token's keys and values in all layers, on each GPU."""
        heads = 1 if self.latent else self.kv_heads
        on_one = -(-heads // tensor_parallel)
        return int(WEIGHT_BYTES[self.kv]) * self.layers * self.kv_numbers // heads * on_one

    @classmethod
    def of_config(
        cls, config: Mapping[str, Any], *, name: str, weights: str | None = None, kv: str | None = None
    ) -> Self:
        """Read the shape of a decoder from its config.

        Args:
            config: the content of ``config.json``; of a multimodal model, its text part is used.
            weights: format of the weights; by default the checkpoint's own, bf16 for any wide format.
            kv: format of the KV cache; by default the checkpoint's own, bf16 if it states none.

        Raises:
            SimulationError: it is no decoder with attention in every layer, or a size is missing.
        """
        try:
            stated, quantization = decoder_config(config, text=True), decoder_config(config).get("quantization_config")
            stored = quantization if isinstance(quantization, Mapping) else {}
            _refuse_other_layers(stated, config.get("text_config") or config, name)
            return cls._read(stated, name, weights or _stored_format(stored, name), kv or _kv_format(stored))
        except UnsupportedModelError as error:
            raise SimulationError(f"{name} cannot be simulated: {error}") from None
        except KeyError as error:
            raise SimulationError(f"{name} cannot be simulated: its config does not state {error}") from None

    @classmethod
    def _read(cls, config: Mapping[str, Any], name: str, weights: str, kv: str) -> Self:
        if weights not in WEIGHT_BYTES:
            raise SimulationError(f"weights in {weights!r} cannot be simulated: use one of {', '.join(WEIGHT_BYTES)}")
        if kv not in ("bf16", "fp8"):
            raise SimulationError(f"a KV cache in {kv!r} cannot be simulated: use bf16 or fp8")
        layers, hidden = _first(config, "num_hidden_layers", "n_layer"), _first(config, "hidden_size", "n_embd")
        in_attention, attention = _attention(config, hidden)
        matrices = 2 if config.get("model_type") in _UNGATED else 3
        inner = _first(config, "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
        shared, mixture = _mixture(config, hidden, layers)
        without_experts = layers - mixture.get("expert_layers", 0)
        vocab = _first(config, "vocab_size")
        windows = config.get("sliding_window") and config.get("use_sliding_window", True) is not False
        return cls(
            name=name,
            architecture=str((config.get("architectures") or [config.get("model_type") or "decoder"])[0]),
            weights=weights,
            kv=kv,
            layers=layers,
            hidden=hidden,
            intermediate=inner,
            **attention,
            dense=layers * in_attention + without_experts * matrices * hidden * inner + shared,
            **mixture,
            vocab=vocab,
            embedding=vocab * hidden,
            output=vocab * hidden,
            tied=bool(config.get("tie_word_embeddings", config.get("model_type") == "gpt2")),
            max_len=stated_length(config.get) or 131072,
            unmodelled="sliding windows" if windows else "",
        )


def _first(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        if value := config.get(name):
            return int(value)
    if not default:
        raise KeyError(names[0])
    return default


def _attention(config: Mapping[str, Any], hidden: int) -> tuple[int, dict[str, Any]]:
    """Returns the parameters of one layer's attention, and its sizes by their names in ``ModelShape``."""
    heads = _first(config, "num_attention_heads", "n_head")
    if config.get("kv_lora_rank"):
        rank, rope = _first(config, "kv_lora_rank"), _first(config, "qk_rope_head_dim")
        nope, v_dim = _first(config, "qk_nope_head_dim"), _first(config, "v_head_dim")
        low = config.get("q_lora_rank")
        queries = low * (hidden + heads * (nope + rope)) if low else hidden * heads * (nope + rope)
        keys = hidden * (rank + rope) + rank * heads * (nope + v_dim)
        sizes = {"k_dim": nope + rope, "v_dim": v_dim, "kv_numbers": rank + rope, "latent": True}
        return queries + keys + heads * v_dim * hidden, {"heads": heads, "kv_heads": 1, **sizes}
    dim = _first(config, "head_dim", default=hidden // heads)
    kv_heads = _first(config, "num_key_value_heads", "num_kv_heads", default=heads)
    sizes = {"k_dim": dim, "v_dim": dim, "kv_numbers": 2 * kv_heads * dim, "latent": False}
    return 2 * hidden * dim * (heads + kv_heads), {"heads": heads, "kv_heads": kv_heads, **sizes}


def _mixture(config: Mapping[str, Any], hidden: int, layers: int) -> tuple[int, dict[str, Any]]:
    """Returns the parameters of shared experts and routers, and a mixture's sizes by their names in ``ModelShape``."""
    experts = _first(config, "n_routed_experts", "num_local_experts", "num_experts", default=1)
    if experts == 1:
        return 0, {}
    inner = _first(config, "moe_intermediate_size", "intermediate_size")
    used = _first(config, "num_experts_per_tok", "moe_topk")
    if used > experts:
        raise UnsupportedModelError(f"its config has {used} experts for a token, but only {experts}")
    first = config.get("first_k_dense_replace") or 0
    every = config.get("moe_layer_freq") or config.get("decoder_sparse_step") or 1
    expert_layers = len(range(first, layers, every))
    shared_inner = (config.get("n_shared_experts") or 0) * inner or config.get("shared_expert_intermediate_size") or 0
    shared = expert_layers * (3 * hidden * shared_inner + hidden * experts)
    sizes = {"experts": experts, "experts_per_token": used, "expert": 3 * hidden * inner}
    return shared, {**sizes, "expert_layers": expert_layers}


def _refuse_other_layers(config: Mapping[str, Any], sizes: Mapping[str, Any], name: str) -> None:
    kinds = [str(kind) for kind in config.get("layer_types") or config.get("layers_block_type") or ()]
    other = next((kind for kind in kinds if any(part in kind for part in _OTHER_LAYERS)), None)
    if other is None:
        names = [name for name, size in sizes.items() if size]
        other = next(
            (kind for begin, kind in _OTHER_SIZES.items() if any(name.startswith(begin) for name in names)), None
        )
    if other is not None or config.get("is_encoder_decoder"):
        what = f"layers of the kind {other}" if other else "layers without attention, or an encoder"
        raise SimulationError(f"{name} cannot be simulated: it has {what}")


def _stored_format(quantization: Mapping[str, Any], name: str) -> str:
    if not quantization:
        return "bf16"
    method, bits = str(quantization.get("quant_method")), quantization.get("bits") or quantization.get("w_bit")
    if bits in (4, 8):
        return f"int{int(bits)}"
    if method == "bitsandbytes":
        return "int4" if quantization.get("load_in_4bit") else "int8"
    if "fp4" in str(quantization.get("quant_algo") or quantization.get("format") or "").lower():
        return "fp4"
    if method not in _METHODS:
        raise SimulationError(
            f"{name} cannot be simulated: its weights are quantized by {method}, whose size is unknown"
        )
    return _METHODS[method]


def _kv_format(quantization: Mapping[str, Any]) -> str:
    return "fp8" if quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo") else "bf16"
