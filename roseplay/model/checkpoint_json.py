"""The JSON files of a checkpoint, and the types and limits of what is read from them: its config, the index of its weights,
and the headers of these. Imports nothing large."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import from_json
from typing_extensions import TypedDict

from roseplay.model.errors import UnsupportedModelError, reason_of

MAX_JSON = 32_000_000  # bytes; indices of the largest mixtures of experts have 20 MB
_Text = Annotated[str, Field(max_length=200)]
_Texts = Annotated[list[_Text], Field(max_length=10_000)]
# A list has a number for each layer; none of them is used.
_NoList = BeforeValidator(lambda value: None if isinstance(value, list) else value)
_Size = Annotated[Annotated[int, Field(ge=0, le=2**31 - 1)] | None, _NoList]
_Bits = Annotated[float, Field(ge=0, le=64)]
_Length = Annotated[int, Field(ge=-1, le=2**31 - 1)]  # of a context; -1 and 0 stand for none
_Factor = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


def _fields(*names_of: tuple[Any, str]) -> Any:
    """Returns a model with these fields, each of which may be null or missing; others are left out."""
    fields: dict[str, Any] = {name: (kind | None, None) for kind, names in names_of for name in names.split()}
    return create_model("Fields", **fields)


_METHOD = (_Text, "quant_method quant_algo format kv_cache_quant_algo")
_QUANTIZATION = _fields(_METHOD, (_Bits, "bits w_bit"), (bool, "load_in_4bit"), (object, "kv_cache_scheme"))
_DECODER: TypeAdapter[Any] = TypeAdapter(_fields(
    (_Text, "model_type dtype torch_dtype"),
    (_Texts, "architectures layer_types layers_block_type"),
    (bool, "is_encoder_decoder use_sliding_window tie_word_embeddings"),
    (_Length, "max_position_embeddings n_positions max_seq_len seq_length max_sequence_length n_ctx"),
    (_Size, "num_hidden_layers n_layer hidden_size n_embd intermediate_size n_inner ffn_dim vocab_size"),
    (_Size, "num_attention_heads n_head num_key_value_heads num_kv_heads head_dim linear_num_key_heads"),
    (_Size, "kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim"),
    (_Size, "n_routed_experts num_local_experts num_experts num_experts_per_tok moe_topk moe_intermediate_size"),
    (_Size, "first_k_dense_replace moe_layer_freq decoder_sparse_step n_shared_experts"),
    (_Size, "shared_expert_intermediate_size"),
    (_fields((_Text, "rope_type type"), (_Factor, "factor")), "rope_parameters rope_scaling"),
    (_QUANTIZATION, "quantization_config"),
    (object, "sliding_window ssm_cfg"),
))  # fmt: skip


class StoredTensor(TypedDict):
    """A tensor in the header of a safetensors file."""

    dtype: Annotated[str, Field(max_length=20)]
    shape: Annotated[list[Annotated[int, Field(ge=0, le=2**40)]], Field(max_length=8)]
    data_offsets: Annotated[list[Annotated[int, Field(ge=0, le=2**60)]], Field(min_length=2, max_length=2)]


_INDEX = TypeAdapter(dict[str, Annotated[str, Field(pattern=r"^[^/\\]{1,255}$")]])
_TENSORS = TypeAdapter(dict[str, StoredTensor])
# In our words, where pydantic's are about its own types.
_WRONG = {
    "model_type": "it should be a JSON object",
    "string_pattern_mismatch": "it should be the name of a file in the same folder",
}


def _declared(kind: TypeAdapter[Any], value: Any, what: str) -> Any:
    """Returns a value as declared; raises ``UnsupportedModelError`` for another, in a line that begins with ``what``."""
    try:
        return kind.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))[:200]
        given = f"has {str(first['input'])[:40]!r} as {field!r}" if field else f"is a {type(value).__name__}"
        wrong = _WRONG.get(first["type"]) or f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise UnsupportedModelError(f"{what} {given}: {wrong}") from None


def read_object(file: Path, *, header: bool = False) -> dict[str, Any]:
    """Returns the JSON object in a file, or in the ``header`` that its first 8 bytes give the length of.

    Raises ``UnsupportedModelError`` with the file's name, if there is none.
    """
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little") if header else MAX_JSON + 1
            data = opened.read(min(length, MAX_JSON + 1))
        if len(data) > MAX_JSON:
            raise ValueError(f"it has more than {MAX_JSON:,} bytes of JSON")
        value = from_json(data)
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{file.name} cannot be read: {' '.join(reason_of(error).split())}") from None
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{file.name} is no JSON object")
    return value


def decoder_config(config: Mapping[str, Any], *, text: bool = False) -> dict[str, Any]:
    """Returns those fields of a ``config.json`` that are used here, without those that are null.

    Args:
        text: of a multimodal model, return the fields of its text part.

    Raises:
        UnsupportedModelError: one has another type than it should, or is out of range.
    """
    part = config.get("text_config") if text else None
    return dict(_declared(_DECODER, config if part is None else part, "its config").model_dump(exclude_none=True))


def indexed_files(index: Path) -> set[str]:
    """Returns the names of the weight files in an index; raises ``UnsupportedModelError``."""
    return set(_declared(_INDEX, read_object(index).get("weight_map"), f"the weight_map of {index.name}").values())


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Returns the header's entry for each tensor of a safetensors file; nothing for a file of another kind.

    Raises ``UnsupportedModelError`` for a header that is damaged.
    """
    if file.suffix != ".safetensors":
        return {}
    header = read_object(file, header=True)
    header.pop("__metadata__", None)
    return _declared(_TENSORS, header, file.name)
