"""Finding the tokenizer that belongs to a model."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from roseplay.config import EngineConfig
from roseplay.model.source import cached_first, find_source
from roseplay.model.support import UnsupportedModelError

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def load_tokenizer(model: str | PreTrainedModel, config: EngineConfig) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a model, given as for ``load_model``; None if it has none.

    A directory without tokenizer files has none. A model in memory has one if its config has the path or hub id that it
    was loaded from. Raises ``UnsupportedModelError`` when there is a tokenizer that cannot be loaded.
    """
    if isinstance(model, PreTrainedModel):
        origin = model.config.name_or_path
        if not origin:
            return None
        try:
            return load_tokenizer(origin, config)
        except UnsupportedModelError:
            return None
    source, local = find_source(model)
    if local and not any((Path(source) / name).is_file() for name in _FILES):
        return None

    def load(offline: bool) -> PreTrainedTokenizerFast:
        return AutoTokenizer.from_pretrained(
            source, local_files_only=offline, trust_remote_code=config.trust_remote_code
        )

    try:
        return cached_first(source, local, load)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"the tokenizer of {model} cannot be loaded: {' '.join(str(error).split())}"
        ) from error
