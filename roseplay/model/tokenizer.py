"""Loads the tokenizer that belongs to a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.config import EngineConfig
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.gguf_hub import on_this_machine
from roseplay.model.gguf_tokenizer import gguf_tokenizer
from roseplay.model.source import Source, cached_first, find_source

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def load_tokenizer(model: str | PreTrainedModel, config: EngineConfig) -> PreTrainedTokenizerFast | None:
    """Returns the tokenizer of a model, given as for ``load_model``; None if it has none.

    A directory without tokenizer files has none. A model in memory has one if its config names the path or hub id that
    it was loaded from. Raises ``UnsupportedModelError`` if there is a tokenizer but it cannot be loaded.
    """
    if not isinstance(model, str):
        origin = model.config.name_or_path
        if not origin:
            return None
        try:
            return load_tokenizer(origin, config)
        except UnsupportedModelError:
            return None
    source = find_source(model)
    if source.gguf is None and source.local and not any(Path(source.place, name).is_file() for name in _FILES):
        return None

    def load(offline: bool) -> PreTrainedTokenizerFast:
        tokenizer_class = _tokenizer_class(source)
        return tokenizer_class.from_pretrained(
            source.place, local_files_only=offline, trust_remote_code=config.trust_remote_code
        )

    try:
        if source.gguf is not None:
            return gguf_tokenizer(on_this_machine(source), name=model)
        return cached_first(source, load)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"the tokenizer of {model} cannot be loaded: {' '.join(str(error).split())}"
        ) from error


def _tokenizer_class(source: Source) -> Any:
    """Returns the class to load: the generic one if the files ask for it, because ``AutoTokenizer`` imports torch.

    A server whose model runs in another process then starts seconds earlier and needs less memory.
    """
    import transformers

    try:
        named = json.loads(Path(source.place, "tokenizer_config.json").read_text("utf-8")) if source.local else {}
    except (OSError, ValueError):
        named = {}  # AutoTokenizer says what is wrong
    generic = named.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in named
    return transformers.PreTrainedTokenizerFast if generic else transformers.AutoTokenizer
