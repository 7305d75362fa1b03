"""Loads a transformers decoder and replaces its attention by ours."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from roseplay.config import EngineConfig
from roseplay.core.info import Choice
from roseplay.core.progress import Reporter
from roseplay.host_memory import free_memory
from roseplay.model import exclusive, gguf_reading
from roseplay.model.accelerator import accelerator_for
from roseplay.model.attention.interface import ATTENTION_NAME
from roseplay.model.attention.pattern import adopt_config_patterns
from roseplay.model.block_tensor import check_finite, kind_of
from roseplay.model.checkpoint_json import stored_tensors
from roseplay.model.context_length import stated_length
from roseplay.model.devices import choose_device
from roseplay.model.downloads import download_bar
from roseplay.model.errors import UnsupportedModelError, refuse
from roseplay.model.gguf import GgufModel
from roseplay.model.gguf_hub import on_this_machine
from roseplay.model.layout import adopt_latents, attach_states, record_layout
from roseplay.model.loaded_model import LoadedModel, sampling_defaults
from roseplay.model.probe import Tried, probe
from roseplay.model.quantized import check_method, check_stored, dequantizing, how_read, method_of, unify_dtype
from roseplay.model.ranks import Ranks
from roseplay.model.rope import freeze_rope, rope_parameters
from roseplay.model.shard import check_plan, shard
from roseplay.model.source import Source, cached_first, find_source, quiet
from roseplay.model.speed import FIRST_SIZES
from roseplay.model.stateful import keeps_states
from roseplay.model.support import check_class, check_config, class_config, find_class, needs_probe
from roseplay.model.text_part import KEYS, NOT_TEXT, text_part
from roseplay.model.weights_progress import checkpoint_files, converted_bytes, counting_checkpoint, counting_random

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_log = logging.getLogger(__name__)
_MARGIN = 1.1  # files may hold more than is read, such as layers for multi-token prediction


def load_model(
    model: str | PreTrainedModel,
    config: EngineConfig,
    reporter: Reporter | None = None,
    ranks: Ranks | None = None,
    free_bytes: Callable[[], int] = free_memory,
) -> LoadedModel:
    """Load a model by its name, path or hub id (see ``find_source``), or use a model in memory.

    Only a hub id that is not cached causes a download. With ``config.random_weights`` the model is built from its
    config alone. A model in memory is not changed: a copy of its modules that shares its weights is used (a full copy
    if ``config`` asks for another device or dtype; ``auto`` keeps both). ``reporter`` receives each stage and its
    progress. torch uses ``config.threads`` threads from now on, because measurements made here depend on them. With
    ``ranks`` only this process's part of the model is kept, but the whole model passes through the host's memory, of
    which ``free_bytes`` tells how much is free.

    Raises ``UnsupportedModelError``, with a message of one line that says what to do, if the model is not found or not
    supported.
    """
    with exclusive.loading:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        return _load(model, config, reporter or Reporter(), ranks, free_bytes)


def _load(
    model: str | PreTrainedModel,
    config: EngineConfig,
    reporter: Reporter,
    ranks: Ranks | None,
    free_bytes: Callable[[], int],
) -> LoadedModel:
    if isinstance(model, PreTrainedModel):
        name = model.config.name_or_path or type(model).__name__
        if model.get_output_embeddings() is None:
            raise refuse(name, f"{type(model).__name__} has no language model head")
        if getattr(model, "is_quantized", False):
            raise refuse(name, "a quantized model in memory is not supported; dequantize it, or give its directory")
        checked = _check(model.config, type(model), config, name, ranks)
        return _finish(_adopt(model, config), config, name, checked, reporter, ranks)

    source = on_this_machine(find_source(model), reporter)
    file = gguf_reading.open_to_read(source.file, name=model) if source.file is not None else None
    hf_config = _read_config(model, source, file, config)
    check_config(hf_config, name=model)
    part = text_part(hf_config, name=model)
    if part is not None:
        hf_config = part.config
        _log.warning("%s: %s", model, part.choice.chosen)
    model_class = find_class(hf_config, name=model, trust_remote_code=config.trust_remote_code)
    checked = _check(hf_config, model_class, config, model, ranks)
    device = choose_device(config.device) if ranks is None else ranks.device
    dtype = _choose_dtype(config.dtype, hf_config, device)
    if ranks is not None:
        device = torch.device("cpu")  # the whole model may not fit where its part goes
    choices: tuple[Choice, ...] = () if part is None else (part.choice,)
    if config.random_weights:
        built = _build_random(hf_config, config, device, dtype, reporter)
    else:
        # A dtype that was asked for is what all weights are computed in.
        keeps = file is not None and gguf_reading.can_keep(file) and config.dtype == "auto" and ranks is None
        kept = accelerator_for(device).block_kinds(config) if keeps else frozenset()
        alone = part is not None and part.alone
        built = _read_weights(model, source, file, hf_config, config, device, dtype, reporter, free_bytes, alone, kept)
        kinds = {kind_of(weight) for weight in built.parameters()}
        choices += how_read(hf_config, dtype) if file is None else gguf_reading.how_converted(file, dtype, kinds)
    return _finish(built, config, source.name, checked, reporter, ranks, choices)


def decoder_config(model: str) -> Any:
    """Returns transformers' config of a model's decoder. Takes and raises the same as ``load_model``."""
    source = on_this_machine(find_source(model))
    file = gguf_reading.open_to_read(source.file, name=model) if source.file is not None else None
    return _read_config(model, source, file, EngineConfig()).get_text_config()


@dataclass(frozen=True, slots=True)
class _Checked:
    """The result of checking a supported model."""

    max_model_len: int
    tried: Tried


def _check(
    hf_config: Any, model_class: type | None, config: EngineConfig, name: str, ranks: Ranks | None = None
) -> _Checked:
    """Check that a model's family is supported."""
    hf_config = class_config(hf_config, model_class)
    check_config(hf_config, name=name)
    if model_class is not None:
        check_class(model_class, hf_config, name=name)
    if ranks is not None:
        check_plan(hf_config, ranks.size, name=name)
    max_model_len = _choose_max_model_len(hf_config, config.max_model_len, name)

    def build(small: Any) -> PreTrainedModel:
        options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
        if model_class is not None:
            return model_class._from_config(small, **options)  # type: ignore[attr-defined]
        return AutoModelForCausalLM.from_config(small, trust_remote_code=config.trust_remote_code, **options)

    tried = Tried()
    if needs_probe(hf_config, model_class):
        with quiet(), torch.random.fork_rng():
            tried = probe(hf_config, name=name, build=build)
    return _Checked(max_model_len, tried)


def _finish(
    model: PreTrainedModel,
    config: EngineConfig,
    name: str,
    checked: _Checked,
    reporter: Reporter,
    ranks: Ranks | None,
    choices: tuple[Choice, ...] = (),
) -> LoadedModel:
    check_class(type(model), model.config, name=name)
    num_parameters, weight_bytes = sum(parameter.numel() for parameter in model.parameters()), _weight_bytes(model)
    if ranks is not None:
        model = shard(model, ranks, name=name)
    with quiet():
        model.set_attn_implementation(ATTENTION_NAME)
    if model.config.get_text_config()._attn_implementation != ATTENTION_NAME:
        raise refuse(name, f"{model.config.model_type} does not let its attention be replaced")
    model.eval()
    try:
        freeze_rope(model, checked.max_model_len)
        states = attach_states(model, one_by_one=checked.tried.one_by_one) if keeps_states(model.config) else {}
        if checked.tried.patterns_from_config:
            adopt_config_patterns(model)
        latents = config.latent_cache == "on" or (config.latent_cache == "auto" and model.device.type == "cuda")
        if latents and adopt_latents(model):
            choices += (Choice("KV cache", "latents", "instead of each head's keys and values"),)
        shapes, vocab_size = record_layout(model)
    except Exception as error:
        raise refuse(name, f"{model.config.model_type} does not run on paged attention ({error})") from error
    device, dtype = model.device, model.dtype
    reporter.begin("kernels", len(FIRST_SIZES))  # the first steps compile what was not prepared here
    weight_bytes -= accelerator_for(device).prepare(model, config, reporter)
    return LoadedModel(
        model=model,
        config=model.config,
        name=name,
        device=device,
        dtype=dtype,
        max_model_len=checked.max_model_len,
        eos_token_ids=_eos_token_ids(model),
        kv_shapes=shapes,
        state_shapes=states,
        vocab_size=vocab_size,
        num_embeddings=model.get_input_embeddings().weight.shape[0],
        num_parameters=num_parameters,
        weight_bytes=weight_bytes,
        choices=choices,
        sampling_defaults=sampling_defaults(model) if config.generation_config == "auto" else {},
    )


def _weight_bytes(model: PreTrainedModel) -> int:
    """Returns the bytes of all parameters except those that only an embedding uses, of which a step reads few rows."""
    holders = [module for module in model.modules() if not isinstance(module, torch.nn.Embedding)]
    read = {id(p): p for module in holders for p in module.parameters(recurse=False)}
    return sum(p.numel() * p.element_size() for p in read.values())


def _adopt(model: PreTrainedModel, config: EngineConfig) -> PreTrainedModel:
    device = model.device if config.device == "auto" else choose_device(config.device)
    dtype = DTYPES.get(config.dtype, model.dtype)
    if device == model.device and dtype == model.dtype:
        shared = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
        return copy.deepcopy(model, shared)
    return copy.deepcopy(model).to(device=device, dtype=dtype)


def _read_config(name: str, source: Source, file: GgufModel | None, config: EngineConfig) -> Any:
    def load(offline: bool) -> Any:
        return AutoConfig.from_pretrained(
            source.place,
            local_files_only=offline,
            trust_remote_code=config.trust_remote_code,
            **({} if file is None else {"gguf_file": str(source.file)}),
        )

    try:
        with contextlib.nullcontext() if file is None else gguf_reading.read_by_us(file):
            hf_config = cached_first(source, load)
    except UnsupportedModelError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise refuse(name, "it brings Python code of its own; set trust_remote_code if you trust it") from error
        what = "its config" if file is None else f"its architecture {file.first.architecture}"
        raise refuse(name, f"{what} cannot be read ({error})") from error
    if file is not None:
        hf_config.dtype = gguf_reading.stored_dtype(file)
    return hf_config


def _build_random(
    hf_config: Any, config: EngineConfig, device: torch.device, dtype: torch.dtype, reporter: Reporter
) -> PreTrainedModel:
    """Returns a model with random weights from its own initialisation; equal seeds give equal weights."""

    def build() -> PreTrainedModel:
        return AutoModelForCausalLM.from_config(
            hf_config, dtype=dtype, attn_implementation=ATTENTION_NAME, trust_remote_code=config.trust_remote_code
        )

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), quiet(), counting_random(reporter, build), device:
        torch.manual_seed(config.seed)
        model = build()
    return model.to(device)


def _read_weights(
    name: str,
    source: Source,
    file: GgufModel | None,
    hf_config: Any,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    reporter: Reporter,
    free_bytes: Callable[[], int],
    text_alone: bool = False,
    kept: frozenset[str] = frozenset(),
) -> PreTrainedModel:
    """Read the weights of a checkpoint; with ``text_alone``, only those of its text part.

    Args:
        kept: types of a GGUF file's blocks that are not converted.
    """
    unread = NOT_TEXT if text_alone else None
    if file is None:
        _check_files(name, source, hf_config)
        needed = converted_bytes(checkpoint_files(source), dtype, unread)
    else:
        needed = file.converted_bytes(dtype.itemsize, kept)
    _check_memory(name, needed, dtype, free_bytes())

    def load(offline: bool) -> tuple[PreTrainedModel, dict[str, Any]]:
        if not offline:
            reporter.begin("download", unit="bytes")
        return AutoModelForCausalLM.from_pretrained(
            source.place,
            config=hf_config,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            local_files_only=offline,
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
            key_mapping=KEYS if text_alone else None,
            **({"tqdm_class": download_bar(reporter)} if reporter.heard else {}),
            **({} if file is None else gguf_reading.gguf_options(source.file)),
        )

    counting = (
        counting_checkpoint(reporter, source, unread)
        if file is None
        else gguf_reading.counting_gguf(reporter, file, kept)
    )
    try:
        with counting, dequantizing(hf_config):
            model, loading = cached_first(source, load)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise refuse(name, f"its weights cannot be read ({error})") from error
    missing = sorted(loading["missing_keys"])
    if missing:
        raise refuse(name, f"its checkpoint lacks {len(missing)} weights, {missing[0]} for one")
    check_stored(loading["unexpected_keys"], None, name=name)  # scales that nothing used
    unify_dtype(model, hf_config, dtype)
    if file is not None or method_of(hf_config) is not None:
        check_finite(model, name=name)
    if file is not None:
        gguf_reading.adopt_generation_values(model, file)
    return model.to(device)


def _check_files(name: str, source: Source, hf_config: Any) -> None:
    """Check everything that can be checked before the weights are read or downloaded."""
    patterns = ("*.safetensors", "*.bin", "*.safetensors.index.json")
    if source.local and not any(next(Path(source.place).glob(pattern), None) for pattern in patterns):
        raise refuse(name, "it has no weights; set random_weights (--random-weights) to run it with random ones")
    check_method(hf_config, name=name)
    files = checkpoint_files(source)
    absent = [file.name for file in files if not file.is_file()]
    if absent and source.local:
        raise refuse(name, f"{len(absent)} of its {len(files)} files of weights are missing, {absent[0]} for one")
    check_stored((key for file in files for key in stored_tensors(file)), method_of(hf_config), name=name)


def _check_memory(name: str, needed: int, dtype: torch.dtype, free: int) -> None:
    """Refuse weights that are converted while being read if the host has no memory for the result."""
    if sys.platform == "linux" and needed > _MARGIN * free:  # elsewhere the free memory is a guess
        raise refuse(
            name,
            f"its weights need {needed / 2**30:,.1f} GiB in {str(dtype).removeprefix('torch.')}, but only "
            f"{free / 2**30:,.1f} GiB of memory are free",
        )


def _choose_dtype(dtype: str, hf_config: Any, device: torch.device) -> torch.dtype:
    if dtype != "auto":
        return DTYPES[dtype]
    own = getattr(hf_config.get_text_config(), "dtype", None) or getattr(hf_config, "dtype", None)
    if isinstance(own, str):
        own = getattr(torch, own, None)
    if device.type == "cpu":
        return (
            torch.bfloat16 if own == torch.bfloat16 and accelerator_for(device).multiplies_bfloat16() else torch.float32
        )
    return torch.float32 if own is None else own


def _choose_max_model_len(hf_config: Any, asked: int | None, name: str) -> int:
    text = hf_config.get_text_config()
    limit = stated_length(lambda key: getattr(text, key, None))
    if limit is None:
        if asked is None:
            raise UnsupportedModelError(f"the config of {name} does not say how long its context is: set max_model_len")
        return asked
    # Dynamic rotary embeddings extend the length in the config by their factor.
    factors = [p.get("factor") or 1.0 for p in rope_parameters(text) if "dynamic" in p["rope_type"]]
    limit = int(limit * min(factors, default=1.0))
    if asked is not None and asked > limit:
        raise UnsupportedModelError(f"max_model_len is {asked:,}, but {name} allows {limit:,}: set it to that or less")
    return limit if asked is None else asked


def _eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    for place in (getattr(model, "generation_config", None), model.config.get_text_config(), model.config):
        ids = getattr(place, "eos_token_id", None)
        if ids is not None:
            return frozenset(ids if isinstance(ids, list | tuple) else [ids])
    return frozenset()
