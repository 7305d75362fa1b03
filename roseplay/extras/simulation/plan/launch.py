"""The commands that start servers, and this engine as simulated hardware, with the setting that a plan has found."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from roseplay.config import SETTINGS, EngineConfig, Knobs
from roseplay.extras.simulation.model_shape import ModelShape
from roseplay.extras.simulation.models import hub_id
from roseplay.extras.simulation.plan.search import Tried
from roseplay.settings import defaults_of

_SGLANG = {
    "tensor_parallel_size": "tp-size",
    "max_batch_size": "max-running-requests",
    "step_max_tokens": "chunked-prefill-size",
    "max_model_len": "context-length",
    "block_size": "page-size",
}
_KV_DTYPES = {"fp8": ("fp8", "fp8_e4m3"), "bf16": ("bfloat16", "bfloat16")}  # vLLM's and SGLang's names


def commands(
    one: Tried, model: str, shape: ModelShape, stored: ModelShape, config: EngineConfig, load: Mapping[str, object]
) -> Iterator[str]:
    """Yields the commands that start vLLM, SGLang and roseplay as they were simulated, and that send them the load.

    Args:
        stored: the model in the formats of its checkpoint.
        config: what was simulated, with ``run_as``.
        load: flags of ``vllm bench serve``; empty for requests of a file.
    """
    config = replace(config, tensor_parallel_size=one.gpus)
    knobs = Knobs(max_batch_size=one.max_batch_size, step_max_tokens=one.step_max_tokens)
    settings = {
        setting: value
        for part in (config, knobs)
        for setting, value in asdict(part).items()
        if value != defaults_of(type(part))[setting]
    }
    settings["gpu_memory_utilization"] = config.gpu_memory_utilization  # other servers have other defaults
    name = hub_id(model)
    vllm = {SETTINGS[setting].vllm_name: value for setting, value in settings.items() if setting != "run_as"}
    sglang = {_SGLANG[setting]: value for setting, value in settings.items() if setting in _SGLANG}
    if config.kv_cache_memory is not None:
        vllm["kv_cache_memory_bytes"] = config.kv_cache_memory // one.gpus  # there, of each GPU
    if {"num_blocks", "kv_cache_memory"} & {*settings}:
        sglang["max-total-tokens"] = (one.num_blocks - 1) * config.block_size
    if quantizes := (stored.weights, shape.weights) == ("bf16", "fp8"):
        vllm["quantization"] = sglang["quantization"] = "fp8"
    if shape.kv != stored.kv:
        vllm["kv_cache_dtype"], sglang["kv_cache_dtype"] = _KV_DTYPES[shape.kv]
    yield f"vLLM:     {_command('vllm serve', name, vllm)}"
    yield f"SGLang:   {_command('python -m sglang.launch_server --model-path', name, sglang)}"
    if shape.weights != stored.weights and not quantizes:
        yield f"Both need a checkpoint with {shape.weights} weights in place of {name}, which has {stored.weights}."
    if (shape.weights, shape.kv) == (stored.weights, stored.kv):  # others cannot be chosen there
        yield f"To watch: {_command('roseplay play --model', model, settings)}"
    if load:
        yield f"Load:     {_command('vllm bench serve --dataset-name random --ignore-eos --model', name, load)}"


def _command(start: str, model: str, flags: Mapping[Any, Any]) -> str:
    words = (word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value)))
    return f"{start} {shlex.join([model, *words])}"
