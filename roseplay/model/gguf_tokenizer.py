"""Makes the tokenizer, with its chat template, from a GGUF file."""

from __future__ import annotations

from typing import Any

from roseplay.model.gguf import open_gguf
from roseplay.model.gguf_header import GgufHeader
from roseplay.model.source import Source, quiet

_LISTS = [f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "scores", "token_type", "precompiled_charsmap")]
# The names of special tokens, and the last part of the keys of their ids.
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def gguf_tokenizer(source: Source, *, name: str) -> Any | None:
    """Returns the tokenizer of a local file; None if the file has no vocabulary.

    It equals the one that transformers makes, but follows ``add_space_prefix``, reads the header only once and does not
    import torch. Raises ``UnsupportedModelError`` for a file that cannot be read, and whatever transformers raises for an
    unknown vocabulary.
    """
    assert source.file is not None
    first = open_gguf(source.file, name=name, lists=_LISTS).first
    if _LISTS[0] not in first.metadata:
        return None
    with quiet():
        tokenizer = _converted(first)
    if first.get("tokenizer.ggml.model") == "llama" and first.get("tokenizer.ggml.add_space_prefix") is False:
        from tokenizers import decoders, normalizers

        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer, backend.normalizer = None, normalizers.Replace(" ", "\u2581")
        backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _converted(header: GgufHeader) -> Any:
    import transformers

    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer
    except ImportError:  # transformers 5.17 has it elsewhere, and mixes up some special tokens
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(header.file.parent), gguf_file=str(header.file))
        for name in _SPECIAL:
            setattr(tokenizer, name, _special_tokens(header)[name])
        return tokenizer
    vocabulary, settings = (
        {name: header.get(f"tokenizer.{key}") for key, name in names.items() if f"tokenizer.{key}" in header.metadata}
        for names in (GGUF_TOKENIZER_MAPPING["tokenizer"], GGUF_TOKENIZER_MAPPING["tokenizer_config"])
    )
    backend, _ = convert_gguf_tokenizer(header.architecture, vocabulary)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **settings, **_special_tokens(header))


def _special_tokens(header: GgufHeader) -> dict[str, Any]:
    """Returns the special tokens, and whether a prompt begins with one, as transformers decides it."""
    kind, tokens = header.get("tokenizer.ggml.model"), header.get(_LISTS[0])
    ids = {name: header.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL.items()}
    fields: dict[str, Any] = {name: None if number is None else tokens[number] for name, number in ids.items()}
    if kind == "gemma4":
        fields["add_bos_token"] = False  # its chat template writes it
    elif kind == "llama" and "tokenizer.ggml.add_bos_token" not in header.metadata:
        fields["add_bos_token"] = True
    return fields
