"""How many KV blocks fit on simulated GPUs: what weights, activations and the runtime leave of their memory."""

from __future__ import annotations

from roseplay.config import EngineConfig
from roseplay.extras.simulation.cost import CostModel
from roseplay.extras.simulation.gpus import SimulationError

# Tokens of the largest step, and the rows of logits that it computes, for whose activations memory is kept.
STEP_TOKENS, STEP_LOGITS = 8192, 256
# More blocks than any traffic here uses; the tables of more would take long to make.
MOST_BLOCKS = 2**18
RUNTIME_BYTES = 2**30  # the driver's context, the libraries' buffers and captured graphs


class TooSmallError(SimulationError):
    """The memory of simulated GPUs does not hold the weights, or not one request."""


def activation_bytes(cost: CostModel) -> int:
    """Returns the estimated bytes of the largest step's activations on each GPU.

    Four hidden states and the two inner vectors of a feed-forward layer in bf16 for each token, and logits in bf16 and
    in float32. Engines measure this when they start: 1 to 5 GiB, depending on the model's family.
    """
    shape, parts = cost.shape, cost.tensor_parallel
    per_token = 2 * (4 * shape.hidden + 2 * shape.intermediate // parts)
    return STEP_TOKENS * per_token + STEP_LOGITS * shape.vocab * (2 + 4)


def kv_bytes(cost: CostModel, utilization: float) -> int:
    """Returns the bytes per GPU that are left for the KV cache; negative if nothing is.

    Args:
        utilization: share of the GPU's memory that may be used.
    """
    used = cost.shape.stored_bytes // cost.tensor_parallel + activation_bytes(cost) + RUNTIME_BYTES
    return int(cost.gpu.memory_bytes * utilization) - used


def choose_num_blocks(cost: CostModel, config: EngineConfig, max_model_len: int) -> int:
    """Returns the number of blocks in the pool, including block 0: ``config.num_blocks`` if set, else as many as fit,
    at most ``MOST_BLOCKS``.

    ``config.kv_cache_memory`` are bytes of all GPUs together. The number that a real engine's log gives at its start is
    more exact than this estimate.

    Raises:
        TooSmallError: the weights do not fit, or not one request of ``max_model_len`` tokens does; with the numbers.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    shape, parts = cost.shape, cost.tensor_parallel
    block_bytes = shape.kv_bytes_per_token(parts) * config.block_size
    free = kv_bytes(cost, config.gpu_memory_utilization)
    if config.kv_cache_memory is not None:
        free = config.kv_cache_memory // parts
    num_blocks = free // block_bytes
    needed = -(-max_model_len // config.block_size) + 1
    if num_blocks < needed:
        raise TooSmallError(_too_small(cost, config, free, max_model_len, needed * block_bytes))
    return min(num_blocks, MOST_BLOCKS)


def _too_small(cost: CostModel, config: EngineConfig, free: int, max_model_len: int, needed: int) -> str:
    shape, gpu, parts = cost.shape, cost.gpu, cost.tensor_parallel
    where = f"{parts} x {gpu.title}" if parts > 1 else gpu.title
    weights = shape.stored_bytes / 2**30
    if config.kv_cache_memory is not None:
        return (
            f"kv_cache_memory is {config.kv_cache_memory:,}, but one request of {max_model_len:,} tokens of {shape.name} on"
            f" {where} needs {parts * needed:,} bytes: raise it, or lower max_model_len"
        )
    if free <= 0:
        usable = parts * gpu.memory_bytes * config.gpu_memory_utilization / 2**30
        rest = parts * (activation_bytes(cost) + RUNTIME_BYTES) / 2**30
        return (
            f"{shape.name} does not fit on {where}: its {shape.weights} weights take {weights:.1f} GiB and activations"
            f" {rest:.1f} GiB, but {usable:.1f} GiB can be used; use more or larger GPUs, smaller weights, or a larger"
            " gpu_memory_utilization"
        )
    return (
        f"{shape.name} on {where} leaves {parts * free / 2**30:.1f} GiB for the KV cache, but one request of"
        f" {max_model_len:,} tokens needs {parts * needed / 2**30:.1f} GiB: lower max_model_len, or use more GPUs"
    )
