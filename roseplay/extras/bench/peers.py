"""The contestants of ``roseplay bench compare``, each in its own process, which runs on request.

The results of a run are ``wall_s``, ``tokens`` and, from this engine, every ITL as ``itl_ms``. All contestants get the same model, prompts of token ids, arrival times, dtype and threads, decode greedily, and go on
past end-of-sequence tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from roseplay.config import EngineConfig, Knobs, SamplingParams

Run = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Contest:
    """The work of each run."""

    model: str
    config: dict[str, Any]  # fields of ``EngineConfig``
    prompts: list[list[int]]
    arrivals_s: list[float]  # when each prompt is sent, in seconds from the start of a run
    max_new_tokens: int
    max_batch_size: int
    keep_cache: bool = False  # whether this engine keeps its prefix cache from run to run


def _roseplay(contest: Contest) -> Run:
    from roseplay.engine.client import Engine

    engine = Engine(
        contest.model, config=EngineConfig(**contest.config), knobs=Knobs(max_batch_size=contest.max_batch_size)
    )
    params = SamplingParams(max_new_tokens=contest.max_new_tokens, ignore_eos=True)

    def run() -> dict[str, Any]:
        if not contest.keep_cache:
            engine.clear_cache()
        streams = [engine.submit(prompt, params) for prompt in _arriving(contest)]
        return {
            "tokens": sum(len(stream.result().token_ids) for stream in streams),
            "itl_ms": [gap * 1000 for stream in streams for gap in stream.metrics.itl_s],
        }

    return run


def _generate_batch(contest: Contest) -> Run:
    """transformers' continuous batching: the manager behind ``generate_batch``, kept between runs."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = _transformers_model(contest, "sdpa")
    settings = GenerationConfig(max_new_tokens=contest.max_new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(
        generation_config=settings, continuous_batching_config=ContinuousBatchingConfig(allow_block_sharing=False)
    )
    manager.start()

    def run() -> dict[str, Any]:
        waiting = {manager.add_request(prompt, max_new_tokens=contest.max_new_tokens) for prompt in _arriving(contest)}
        tokens = 0
        while waiting:
            result = manager.get_result(timeout=10)
            if result is None and not manager.is_running():
                raise RuntimeError("generate_batch stopped by itself")
            if result is not None and result.is_finished():
                if result.error:
                    raise RuntimeError(f"generate_batch failed: {result.error}")
                waiting.discard(result.request_id)
                tokens += len(result.generated_tokens)
        return {"tokens": tokens}

    return run


def _generate(contest: Contest, batch_size: int) -> Run:
    """transformers' ``generate`` with static batches, each started when its last prompt has arrived."""
    import torch

    model = _transformers_model(contest, "sdpa")
    model.generation_config.eos_token_id = None

    def run() -> dict[str, Any]:
        tokens = 0
        arriving = _arriving(contest)
        while prompts := list(itertools.islice(arriving, batch_size)):
            longest = max(map(len, prompts))
            padding = [[0] * (longest - len(prompt)) for prompt in prompts]
            ids = torch.tensor([zeros + prompt for zeros, prompt in zip(padding, prompts, strict=True)])
            mask = torch.tensor([zeros + [1] * (longest - len(zeros)) for zeros in padding])
            with torch.inference_mode():
                out = model.generate(
                    ids.to(model.device), attention_mask=mask.to(model.device),
                    max_new_tokens=contest.max_new_tokens, do_sample=False, pad_token_id=0,
                )  # fmt: skip
            tokens += len(prompts) * (out.shape[1] - longest)
        return {"tokens": tokens}

    return run


PEERS: dict[str, Callable[[Contest], Run]] = {
    "roseplay": _roseplay,
    "generate_batch": _generate_batch,
    "generate": lambda contest: _generate(contest, 1),
    "generate_static": lambda contest: _generate(contest, contest.max_batch_size),
}


def _arriving(contest: Contest) -> Any:
    """Yields the prompts, each at its arrival time."""
    start = time.monotonic()
    for prompt, at in zip(contest.prompts, contest.arrivals_s, strict=True):
        time.sleep(max(0.0, start + at - time.monotonic()))
        yield prompt


def _transformers_model(contest: Contest, attention: str) -> Any:
    """Returns transformers' own model with the same weights as the engine's."""
    import torch
    from transformers import AutoModelForCausalLM

    from roseplay.model.loader import load_model

    config = EngineConfig(**contest.config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    # Our loader chooses device, dtype and random weights; a plain model with those weights then runs.
    ours = load_model(contest.model, dataclasses.replace(config, pack_weights=False, fuse_ops=False))
    plain = AutoModelForCausalLM.from_config(ours.config, dtype=ours.dtype, attn_implementation=attention)
    plain.load_state_dict(ours.model.state_dict(), strict=False)
    plain.tie_weights()
    return plain.to(ours.device).eval()


def contestant(orders: Connection, name: str, contest: Contest) -> Iterator[dict[str, Any]]:
    """Yields when it is ready, and then the results of a run for each order that arrives."""
    logging.disable(logging.WARNING)
    run = PEERS[name](contest)
    yield {"ready": True}
    while orders.recv():
        began = time.perf_counter()
        result = run()
        yield {"wall_s": time.perf_counter() - began, **result}
