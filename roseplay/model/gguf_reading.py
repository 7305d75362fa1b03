"""Reads GGUF files through transformers: the config and the weights, which are converted to plain ones while being
read.

For most architectures, transformers uses the ``gguf`` package. While a model is read, parts of that package are
replaced by our own, which reads each header once (transformers would read it several times), joins the parts of a
split model, converts with several threads, and reports progress.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import GgufConfig, modeling_gguf_pytorch_utils
from transformers.integrations.gguf import is_gguf_arch_supported

from roseplay.core.info import Choice
from roseplay.core.progress import Reporter
from roseplay.model.block_tensor import BlockTensor
from roseplay.model.errors import refuse
from roseplay.model.gguf import GgufModel, open_gguf
from roseplay.model.gguf_header import GgufHeader, Value
from roseplay.model.weights_progress import begin_weights, counting

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_TOKENS, _TOKEN_TYPES, _CONTROL = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", 3
_MARK = 2**32  # see ``_mark``
_THREADED_BYTES = 2**20  # a smaller tensor is converted in one thread
# Tokens that end an answer, as families spell them; a file has the ids of only one or two.
_ENDS = re.compile(r"<(\|(im_end|eot_id|eom_id|end|eot|endoftext|end_of_text|return|call)\||end_of_turn)>")
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SAMPLING = {  # names in transformers' generation config, by those of GGUF
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def open_to_read(file: Path, *, name: str) -> GgufModel:
    """Like ``open_gguf``, but also raises its error for split models that transformers cannot read in parts."""
    model = open_gguf(file, name=name, lists=(_TOKENS, _TOKEN_TYPES))
    architecture = model.first.architecture
    if len(model.headers) > 1 and is_gguf_arch_supported(architecture):
        why = f"it is split, and transformers reads {architecture} from one file"
        raise refuse(name, f"{why}: join its parts with llama-gguf-split --merge")
    return model


def stored_dtype(model: GgufModel) -> torch.dtype:
    """Returns the dtype of most of a file's weights, or bfloat16 if these are quantized."""
    return _PLAIN.get(model.types[0], torch.bfloat16)


def can_keep(model: GgufModel) -> bool:
    """Returns whether weights can be left in blocks: not where transformers converts each tensor by its own code."""
    return not is_gguf_arch_supported(model.first.architecture)


def how_converted(model: GgufModel, dtype: torch.dtype, kept: Collection[str | None] = ()) -> tuple[Choice, ...]:
    """Returns how the file was read: what its weights were converted to, and what in it is ignored.

    Args:
        kept: types of blocks in which weights were left.
    """
    kinds, becomes = ", ".join(model.types), str(dtype).removeprefix("torch.")
    left = ", ".join(kind for kind in model.types if kind in kept)
    rest = "experts and the rest" if any("_exps." in tensor.name for tensor in model.tensors) else "the rest"
    how = f"{left} as stored, {rest} in {becomes}" if left else f"converted to {becomes} while it was read"
    choices = [Choice("checkpoint", f"GGUF ({kinds}), {how}")]
    scaling = model.first.get(f"{model.first.architecture}.rope.scaling.type", "none")
    if scaling != "none" or any(tensor.name.startswith("rope_freqs") for tensor in model.tensors):
        why = "transformers does not read how the file stretches positions: answers to long prompts may be worse"
        choices.append(Choice("positions", "not stretched", why))
    return tuple(choices)


def adopt_generation_values(transformer: Any, model: GgufModel) -> None:
    """Copy the file's sampling values, and the ids of tokens that end an answer, to a model's generation config."""
    first, config = model.first, transformer.generation_config
    for key, name in _SAMPLING.items():
        value = first.get(f"general.sampling.{key}")
        if value is not None:
            setattr(config, name, value)
    ids = {first.get(f"tokenizer.ggml.{key}") for key in _END_IDS} - {None}
    config.eos_token_id = sorted(ids | _named_ends(first)) or None


def _named_ends(header: GgufHeader) -> set[int]:
    """Returns the ids of control tokens whose names say that they end an answer."""
    tokens, kinds = header.get(_TOKENS, []), header.get(_TOKEN_TYPES, [])
    control = {tokens[number]: number for number, kind in enumerate(kinds[: len(tokens)]) if kind == _CONTROL}
    ends = {token: number for token, number in control.items() if _ENDS.fullmatch(token)}
    if "<|return|>" in ends:  # GPT-OSS also ends its reasoning with <|end|>
        ends.pop("<|end|>", None)
    return set(ends.values())


@contextlib.contextmanager
def read_by_us(
    model: GgufModel, advance: Callable[[int], None] = lambda size: None, kept: Collection[str] = ()
) -> Iterator[None]:
    """While entered, transformers gets this model when it asks the ``gguf`` package for any file.

    Args:
        advance: called for each converted tensor with the bytes that it has in the file.
        kept: types of blocks in which the matrices of linear layers and embeddings are left (``BlockTensor``).
    """
    import gguf

    convert, load = gguf.dequantize, modeling_gguf_pytorch_utils.load_gguf_checkpoint
    marked: list[tuple[np.ndarray, str]] = []

    def dequantize(data: np.ndarray, kind: Any) -> np.ndarray:
        advance(data.nbytes)
        if kind.name in kept and data.ndim == 2:
            marked.append((data, kind.name))
            return _mark(len(marked) - 1, len(data))
        return _in_threads(lambda part: convert(part, kind), data)

    def load_checkpoint(
        path: Any, return_tensors: bool = False, model_to_load: Any = None, torch_dtype: Any = None
    ) -> Any:
        checkpoint = load(path, return_tensors, model_to_load)
        dtype = torch_dtype or torch.float32
        for name, tensor in checkpoint.get("tensors", {}).items():
            checkpoint["tensors"][name] = _unmarked(tensor, marked, dtype, model_to_load, name)
        return checkpoint

    replacements = (
        (gguf, "GGUFReader", lambda path, *args, **options: _Reader(model)),
        (gguf, "dequantize", dequantize),
        # transformers makes the map of names anew for each module, which takes longer than reading a small model.
        (gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
        (modeling_gguf_pytorch_utils, "load_gguf_checkpoint", load_checkpoint if kept else load),
        (modeling_gguf_pytorch_utils, "tqdm", lambda tensors, **options: tensors),  # it would draw a bar
    )
    with contextlib.ExitStack() as undo:
        for module, name, ours in replacements:
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, ours)
        yield


def _mark(number: int, rows: int) -> np.ndarray:
    """Returns a column that stands for the matrix ``number``, so that transformers changes the order of its rows alone.

    It is float64, as no converted weight is.
    """
    return (number * _MARK + np.arange(rows, dtype=np.float64))[:, None]


def _unmarked(
    tensor: torch.Tensor, marked: list[tuple[np.ndarray, str]], dtype: torch.dtype, model: Any, name: str
) -> Any:
    """Returns a weight that transformers has read, in ``dtype`` or in blocks."""
    if tensor.dtype != torch.float64:
        return tensor.to(dtype)
    transposed = tensor.shape[0] == 1 and tensor.shape[1] > 1
    numbers, order = np.divmod(tensor.numpy().ravel(), _MARK)
    stored, kind = marked[int(numbers[0])]
    order = order.astype(np.int64)
    weight = BlockTensor(stored, kind, None if (np.diff(order) == 1).all() else order, dtype)
    module = model.get_submodule(name.rpartition(".")[0])
    if transposed or not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
        return weight.dequantized().T.contiguous() if transposed else weight.dequantized()
    return weight


@contextlib.contextmanager
def counting_gguf(reporter: Reporter, model: GgufModel, kept: Collection[str] = ()) -> Iterator[None]:
    """While entered, transformers gets this model, and the bytes that it has converted are reported; ``kept`` as for
    ``read_by_us``."""
    total, weights = model.stored_bytes, sum(tensor.numel for tensor in model.tensors)
    begin_weights(reporter, total, "from disk")
    by_tensor = can_keep(model)

    def put(weight: torch.Tensor) -> None:
        if not by_tensor:
            reporter.advance(round(weight.numel() * total / weights))

    with counting(put), read_by_us(model, reporter.advance, kept):
        yield


def gguf_options(file: Path | None) -> dict[str, Any]:
    """Returns the arguments with which ``from_pretrained`` reads a file into plain weights."""
    return {"gguf_file": str(file), "quantization_config": GgufConfig(dequantize=True)}


def _in_threads(convert: Callable[[np.ndarray], np.ndarray], data: np.ndarray) -> np.ndarray:
    """Convert an array in as many threads as torch uses, each taking some of the rows."""
    threads = min(torch.get_num_threads(), len(data))
    if threads < 2 or data.nbytes < _THREADED_BYTES:
        return convert(data)
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(convert, np.array_split(data, threads))))


class _Reader:
    """The part of ``GGUFReader`` that transformers uses: ``fields`` and ``tensors``."""

    def __init__(self, model: GgufModel) -> None:
        self.fields = {key: _field(key, value) for key, value in model.first.metadata.items()}
        self.tensors = [tensor for header in model.headers for tensor in _mapped(header)]


def _field(key: str, value: Value) -> SimpleNamespace:
    """Returns a value of the metadata as ``GGUFReader`` represents it: arrays, and the indices of those with the data.

    transformers' config needs only the length of the vocabulary; ``gguf_tokenizer.py`` reads the tokens.
    """
    if value.is_array and key.startswith("tokenizer."):
        length = value.value if isinstance(value.value, int) else len(value.value)
        return SimpleNamespace(name=key, parts=[(0,)], data=[0] * length, types=[9, 0])
    items = value.value if value.is_array else [value.value]
    if isinstance(items, int):  # the length of a list that was not read
        items = []
    parts = [text.encode() if isinstance(text, str) else np.array([text]) for text in items]
    types = [9, value.type] if value.is_array else [value.type]
    return SimpleNamespace(name=key, parts=parts, data=list(range(len(parts))), types=types)


def _mapped(header: GgufHeader) -> Iterator[SimpleNamespace]:
    """Yields the tensors of a file, mapped into memory; quantized ones as rows of bytes."""
    import gguf

    content = np.memmap(header.file, np.uint8, "r")
    for tensor in header.tensors:
        kind = gguf.GGMLQuantizationType(tensor.type)
        numbers, size = gguf.GGML_QUANT_SIZES[kind]
        row = tensor.shape[-1] // numbers * size
        rows = content[tensor.offset : tensor.offset + tensor.numel // numbers * size]
        data = rows.reshape(*tensor.shape[:-1], row)
        if kind.name in ("F32", "F16"):
            data = data.view(np.float32 if kind.name == "F32" else np.float16)
        yield SimpleNamespace(name=tensor.name, tensor_type=kind, shape=np.array(tensor.shape[::-1]), data=data)
