"""Checks before any engine is started whether an experiment fits into memory beside the live engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from roseplay.config import EngineConfig
from roseplay.core.info import FreeMemory
from roseplay.extras.lab.arms import ArmConfig, LiveEngine, sized
from roseplay.extras.lab.load import Load, PlayedLoad
from roseplay.extras.lab.servers import Servers
from roseplay.extras.lab.types import ArmName
from roseplay.extras.simulation.memory import MOST_BLOCKS
from roseplay.host_memory import USABLE

MIB, GIB = 2**20, 2**30
# Memory besides weights and KV cache: imports and, on a GPU, its context, activations and captured graphs.
GPU_OVERHEAD, PROCESS_OVERHEAD, THREAD_OVERHEAD = 2 * GIB, GIB // 2, GIB // 8
HELD = 0.25  # share of the free memory that an experiment may hold besides its engines
# Of a block, in the pool's tables; of a token, in a simulated run with its record, where each is most.
BLOCK_BYTES, PROMPT_TOKEN_BYTES, ANSWER_TOKEN_BYTES = 256, 136, 560
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that an engine needs, and where: ``"cpu"``, the live engine's device, or ``None`` for an unknown device."""

    place: str | None
    weights: int
    pool: int
    overhead: int

    @property
    def total(self) -> int:
        return self.weights + self.pool + self.overhead


def check_held(configs: Mapping[ArmName, ArmConfig], loads: Iterable[Load], room: int, free: int) -> None:
    """Check what an experiment holds in this machine's memory besides its engines: tables of blocks, and a run's tokens.

    Nothing is made for it, so that an order may be checked before it takes any memory.

    Args:
        room: the most tokens of a prompt.
        free: bytes of this machine's memory.

    Raises:
        ValueError: it may be more than ``HELD`` of the free memory; the message has the numbers and what to lower.
    """
    engines = [config for config in set(configs.values()) if isinstance(config, EngineConfig)]
    sizes = [MOST_BLOCKS if config.num_blocks is None and config.run_as else config.num_blocks for config in engines]
    blocks = sum(size for size in sizes if size is not None)
    prompt, answer = max(
        ((load.most_prompt_tokens(room), load.answer_tokens) for load in loads),
        key=lambda tokens: tokens[0] * PROMPT_TOKEN_BYTES + tokens[1] * ANSWER_TOKEN_BYTES,
    )
    tables = blocks * BLOCK_BYTES
    run = len(set(configs.values())) * (prompt * PROMPT_TOKEN_BYTES + answer * ANSWER_TOKEN_BYTES)
    if tables + run > HELD * free:
        raise ValueError(
            f"this may hold {_gib(tables + run)} of memory: {_gib(tables)} for the tables of {blocks:,} KV blocks, and"
            f" {_gib(run)} for a run of up to {prompt:,} prompt tokens and {answer:,} answer tokens; the lab may take"
            f" {_gib(int(HELD * free))}, a quarter of what is free:"
            f" {'lower num_blocks' if tables > run else 'send fewer or shorter requests'}"
        )


def fit(
    live: LiveEngine | Servers, configs: Mapping[ArmName, ArmConfig], max_batch_size: int, load: PlayedLoad
) -> tuple[Mapping[ArmName, ArmConfig], bool]:
    """Returns the configs with which the arms' engines are opened, and whether only one may be open at a time.

    A pool without a chosen size holds the whole load or, if memory is too short for that, as many of its longest
    requests as run at once. Arms with equal configs share an engine.

    Raises:
        ValueError: not even one engine at a time fits; the message has the numbers and a remedy.
    """
    engines = {arm: config for arm, config in configs.items() if isinstance(config, EngineConfig)}
    if isinstance(live, Servers) or all(config.run_as is not None for config in engines.values()):
        return configs, False  # neither servers nor simulated arms hold weights or a KV cache here
    free = live.free_memory()
    whole, running = (
        {arm: sized(config, live.info, load, at_once) for arm, config in engines.items()}
        for at_once in (None, max_batch_size)
    )
    for chosen, in_turn in ((whole, False), (whole, True), (running, True)):
        needs = [need(live, config) for config in dict.fromkeys(chosen.values())]
        if all(_fits(needs, place, bytes_free, in_turn) for place, bytes_free in _places(live, free)):
            return chosen, in_turn
    raise ValueError(_refusal(live, free, needs))


def need(live: LiveEngine, config: EngineConfig) -> Need:
    """Estimate the memory of an engine with the live engine's model and ``config``, which includes a pool size."""
    info, place = live.info, _place(live, config)
    item_bytes = _ITEM_BYTES[info.dtype]
    if config.dtype != live.config.dtype:
        item_bytes = _ITEM_BYTES.get(config.dtype, item_bytes)
    same = place == info.device and item_bytes == _ITEM_BYTES[info.dtype]
    weights = info.num_parameters * item_bytes
    if not isinstance(live.model, str) and same:  # a loaded model is shared, except for weights repacked for a CPU
        weights = info.weight_bytes if place == "cpu" and config.pack_weights else 0
    times = _kv_item_bytes(config, item_bytes) / _kv_item_bytes(live.config, _ITEM_BYTES[info.dtype])
    token_bytes = math.ceil(info.kv_bytes_per_token * times)
    pool = config.kv_cache_memory or (config.num_blocks or 0) * config.block_size * token_bytes
    overhead = PROCESS_OVERHEAD if config.worker == "process" else THREAD_OVERHEAD
    overhead += (config.tensor_parallel_size - 1) * PROCESS_OVERHEAD
    return Need(place, weights, pool, overhead if place == "cpu" else GPU_OVERHEAD)


def _kv_item_bytes(config: EngineConfig, item_bytes: int) -> float:
    """Returns the bytes of a number in the KV cache; in int8 with its share of a scale, for heads of 64 numbers."""
    return 1 + 4 / 64 if config.kv_dtype == "int8" else item_bytes


def _place(live: LiveEngine, config: EngineConfig) -> str | None:
    if config.device in ("auto", live.config.device, live.info.device):
        return str(live.info.device)
    if config.device == "cpu":
        return "cpu"
    return str(live.info.device) if config.device == live.info.device.partition(":")[0] else None


def _places(live: LiveEngine, free: FreeMemory) -> Iterable[tuple[str, int]]:
    yield "cpu", free.host
    if free.device is not None:
        yield live.info.device, free.device


def _fits(needs: list[Need], place: str, bytes_free: int, in_turn: bool) -> bool:
    totals = [need.total for need in needs if need.place == place]
    return not totals or (max(totals) if in_turn else sum(totals)) <= USABLE * bytes_free


def _refusal(live: LiveEngine, free: FreeMemory, needs: list[Need]) -> str:
    place, bytes_free = next(
        (place, bytes_free) for place, bytes_free in _places(live, free) if not _fits(needs, place, bytes_free, True)
    )
    largest = max((need for need in needs if need.place == place), key=lambda need: need.total)
    where = "memory" if place == "cpu" else f"{place}'s memory"
    return (
        f"the lab needs about {_gib(largest.total)} for an engine of its own ({_gib(largest.weights)} of weights,"
        f" {_gib(largest.pool)} of KV cache, {_gib(largest.overhead)} for the rest), but only {_gib(bytes_free)} of"
        f" {where} are free: {_advice(live, free, largest, bytes_free)}"
    )


def _advice(live: LiveEngine, free: FreeMemory, largest: Need, bytes_free: int) -> str:
    """Returns advice on a flag with which the live engine leaves enough memory, if there is one."""
    info, config = live.info, live.config
    missing = math.ceil(largest.total / USABLE) - bytes_free
    block_bytes = info.block_size * info.kv_bytes_per_token
    pool = info.num_blocks * block_bytes
    one_request = (-(-info.max_model_len // info.block_size) + 1) * block_bytes
    if not live.alive or largest.place != info.device or pool - missing < one_request:
        return "choose a smaller model, or a device with more memory"
    if free.device is None or free.device_total is None or config.num_blocks or config.kv_cache_memory:
        return f"start the page with --kv-cache-memory {(pool - missing) // MIB * MIB}: its own KV cache takes {_gib(pool)}"
    share = (free.device_total - free.device - missing) / free.device_total
    return f"start the page with --gpu-memory-utilization {math.floor(share * 100) / 100:g}"


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
