"""The limiting factor of each step: what has to change for the engine to be faster."""

from __future__ import annotations

from roseplay.engine.records import StepRecord

LIMITS = ("prefill", "decode", "interval", "blocks", "slots", "batch", "queue", "host")


def limit_of(record: StepRecord, max_waiting: int) -> str:
    """Returns one of ``LIMITS``.

    ``queue``: it is full, and further requests are refused. ``batch``, ``blocks``, ``slots``, ``prefill``: requests or
    prompts wait for a place in the batch, KV blocks, a state slot, or a budget of prompt tokens. ``interval``: they wait
    because steps that only decode are to come between those that compute prompts. If none wait, the step
    itself is the limit: ``host`` if the device was idle for more than half of it, else ``prefill`` or ``decode``,
    whichever had more tokens.

    Args:
        max_waiting: the length of the queue, as in ``EngineConfig``.
    """
    if record.waiting >= max_waiting:
        return "queue"
    if record.held_by:
        return record.held_by
    if record.host_ns > record.device_ns:
        return "host"
    return "prefill" if record.prompt_tokens > record.decode_tokens else "decode"
