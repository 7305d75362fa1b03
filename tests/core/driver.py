"""Random operations on a checked scheduler, reproducible from a seed."""

from __future__ import annotations

import random

from roseplay.config import POLICIES
from roseplay.core.request import FinishReason
from tests.core.checker import FAILURES, LAUNCHED, Checker


def random_prompt(rng: random.Random) -> list[int]:
    """A prompt from a few heads and tails, so that prompts share, repeat and diverge in the middle of blocks."""
    head = [rng.randrange(3)] * rng.choice([0, 3, 4, 5, 8, 11])
    tail = [10 + rng.randrange(3) for _ in range(rng.choice([1, 1, 2, 4, 7]))]
    return head + tail


def continued(checker: Checker, rng: random.Random) -> list[int] | None:
    """A chat's next turn: an earlier prompt, all or part of its answer, and perhaps more. None if it is too long."""
    truths = list(checker.device.truths.values())[-20:]
    if not truths or len(tokens := rng.choice(truths).tokens) > 40:
        return None
    return tokens[: rng.choice([len(tokens), rng.randint(1, len(tokens))])] + [10] * rng.randrange(5)


def random_knobs(rng: random.Random) -> dict[str, object]:
    return rng.choice(
        [
            {"max_batch_size": rng.choice([1, 2, 5, 32])},
            {"prefill_max_tokens": rng.choice([None, 1, 3, 4, 9])},
            {"prefill_max_batch_size": rng.choice([None, 1, 2])},
            {"chunk_max_tokens": rng.choice([None, None, 1, 4, 6])},
            {"step_max_tokens": rng.choice([None, 1, 4, 10])},
            {"chunked_prefill": rng.random() < 0.6},
            {"prefix_cache": rng.random() < 0.7},
            {"same_step_sharing": rng.random() < 0.7},
            {"scheduling_policy": rng.choice(POLICIES)},
            {"max_overtakes": rng.choice([None, 1, 5])},
            {"prefill_interval": rng.choice([0, 0, 1, 4])},
            {"eviction_policy": rng.choice(["lru", "lfu"])},
            {"pinned_blocks": rng.choice([0, 1, 2, 5])},
            {"preemption_mode": rng.choice(["recompute", "swap"])},
            {"speculative_tokens": rng.choice([0, 0, 1, 3, 7])},
            {"lookup_ngram": rng.choice([1, 3])},  # with another than the default, guesses are those of PromptLookup
        ]
    )


def make_checker(rng: random.Random) -> Checker:
    block_size = rng.choice([1, 3, 4, 4, 4])
    return Checker(
        num_blocks=rng.choice([6, 9, 14, 40]) * 4 // block_size,
        block_size=block_size,
        max_model_len=rng.choice([20, 10_000]),
        max_saved_logits=rng.choice([0, 1, 3, 100]),
        num_state_slots=rng.choice([0, 0, 0, 0, 1, 2, 7]),
        num_state_snapshots=rng.choice([0, 1, 2, 5, 20]),
        state_interval=rng.choice([0, 1, 2, 3]),
        num_host_blocks=rng.choice([0, 5, 1000, 1000]),
        preemption_mode=rng.choice(["recompute", "swap"]),
        speculative_tokens=rng.choice([0, 0, 0, 4]),
    )


def run(seed: int, operations: int) -> Checker:
    """Perform at least ``operations`` random operations, then serve every request to its end.

    Raises:
        AssertionError: a check failed; its notes list the last operations and the command that repeats the run.
    """
    try:
        return operate(random.Random(seed), operations)
    except Exception as error:
        error.add_note(f"to do it again: make fuzz ARGS='--replay {seed} --run-length {operations}'")
        raise


def operate(rng: random.Random, operations: int) -> Checker:
    """The same with any source of random choices."""
    checker = make_checker(rng)
    ahead, failures = rng.random() < 0.6, rng.choice([0.0, 0.0, 0.02, 0.1])
    try:
        while checker.operations < operations:
            _operate(checker, rng, ahead, failures)
        checker.drain()
    except Exception as error:
        error.add_note(f"after {checker.operations} operations, the last of them:")
        error.add_note("  " + "\n  ".join(checker.log))
        raise
    return checker


def _operate(checker: Checker, rng: random.Random, ahead: bool, failures: float) -> None:
    action = rng.random()
    if action < 0.25 and checker.num_live < 40:
        pool = checker.scheduler.pool
        small = pool.num_usable * pool.block_size < 60  # where long answers outgrow the pool: requests are preempted
        prompt, count = random_prompt(rng), rng.choice([9, 16, 24] if small else [1, 1, 2, 5, 9])
        if rng.random() < 0.02:
            prompt *= rng.choice([3, 10, 40])  # may be too long for the pool
        if rng.random() < 0.3:
            prompt = continued(checker, rng) or prompt
        eos = frozenset(rng.randrange(1, 50) for _ in range(2)) if rng.random() < 0.5 else frozenset()
        seed, prompt_logprobs = rng.randrange(2), rng.choice([None] * 7 + [0])
        for _ in range(rng.choice([1] * 9 + [3])):
            tenant, priority = rng.choice([None, "a", "b"]), rng.randrange(-1, 2)
            checker.submit(prompt, count, seed, eos, prompt_logprobs=prompt_logprobs, tenant=tenant, priority=priority)
    elif action < 0.28:
        checker.end(rng.randrange(40), rng.choice([FinishReason.ABORT, FinishReason.STOP]))
    elif action < 0.31:
        checker.set_knobs(**random_knobs(rng))
    elif action < 0.32:
        checker.clear_cache()
    elif action < 0.325:
        checker.set_memory(rng.choice([None, None, 1, 2, 5, 9]))
    elif action < 0.33:
        checker.set_step_limit(rng.choice([None, None, 2, 7]))
    elif action < 0.335:
        checker.set_token_cost(rng.choice([0.0, 0.02, 0.3]))
    elif not ahead or action < 0.38:
        checker.step(_outcome(rng, failures))
    else:
        checker.launch(_outcome(rng, failures))


def _outcome(rng: random.Random, failures: float) -> str:
    return rng.choice(FAILURES) if rng.random() < failures else LAUNCHED
