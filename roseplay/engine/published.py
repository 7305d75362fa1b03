"""Builds what a worker publishes about a step: its record, its tokens, its block changes."""

from __future__ import annotations

from roseplay.core.block_pool import BlockPool
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step, StepCounts, StepEntry, StepResult
from roseplay.engine.messages import BlockInfo, NewToken, PromptLogprobs
from roseplay.engine.records import BlockChange, EntryRecord, StateChange, StepRecord, names_of

_COUNTED = [*names_of(StepCounts), "admitted", "held_by", "misses"]


def entry_record(entry: StepEntry) -> EntryRecord:
    """Returns a request's part in a step, with the current progress of its prompt."""
    request = entry.request
    return EntryRecord(
        request.request_id,
        entry.num_prompt_tokens,
        entry.num_tokens - entry.num_prompt_tokens,
        min(request.num_computed_tokens, request.prefill_end),
        request.prefill_end,
        request.num_cached_tokens,
        request.num_shared_tokens,
    )


def tokens_of(step: Step, result: StepResult, new_tokens: list[tuple[StepEntry, int]]) -> list[NewToken]:
    """Returns the step's new tokens with their log-probabilities, in the step's order."""
    logprobs = {
        id(step.entries[index]): iter([value, *(after for _, after in result.after_draft.get(index, ()))])
        for index, value in enumerate(result.logprobs)
        if value
    }
    following = [*(entry for entry, _ in new_tokens[1:]), None]  # several tokens of one entry follow each other
    return [
        NewToken(
            entry.request.request_id,
            token,
            None if after is entry else entry.request.finish_reason,
            next(logprobs[id(entry)], None) if id(entry) in logprobs else None,
        )
        for (entry, token), after in zip(new_tokens, following, strict=False)
    ]


def prompt_logprobs_of(step: Step, result: StepResult) -> list[PromptLogprobs]:
    """Returns the log-probabilities of prompt tokens that the step has computed."""
    return [PromptLogprobs(step.entries[i].request.request_id, values) for i, values in result.prompt_logprobs.items()]


def step_record(
    scheduler: Scheduler,
    step: Step,
    result: StepResult,
    start_ns: int,
    end_ns: int,
    schedule_ns: int,
    entries: list[EntryRecord],
) -> StepRecord:
    """Returns the telemetry of a step that has just ended; ``entries`` were made before its result was applied."""
    pool = scheduler.pool
    return StepRecord(
        **{name: getattr(step, name) for name in _COUNTED},
        start_ns=start_ns,
        end_ns=end_ns,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        blocks_free=pool.num_free,
        blocks_cached=pool.num_cached,
        blocks_active=pool.num_active,
        blocks_shared=pool.num_shared,
        swapped_out=len(step.swapped_out),
        swapped_in=len(step.swapped_in),
        schedule_ns=schedule_ns,
        prepare_ns=result.prepare_ns,
        forward_ns=result.forward_ns,
        sample_ns=result.sample_ns,
        device_ns=result.device_ns,
        mask_ms=round(result.mask_ns / 1e6, 3),
        mask_wait_ms=round(result.mask_wait_ns / 1e6, 3),
        entries=entries,
        block_changes=_block_changes(scheduler),
        replayed=result.replayed,
        cache_events=log.take() if (log := scheduler.cache.log) is not None else [],
        state_slots=scheduler.slots.num_slots - scheduler.slots.num_free,
        states_kept=scheduler.cache.states.num_kept,
        state_changes=_state_changes(scheduler),
    )


def _block_changes(scheduler: Scheduler) -> list[BlockChange]:
    pool, tables = scheduler.pool, scheduler.tables
    return [
        BlockChange(block, pool.ref_counts[block], next(iter(tables.holders(block)), -1), _findable(pool, block))
        for block in pool.take_changed()
    ]


def _findable(pool: BlockPool, block: int) -> int:
    return pool.is_findable(block) + pool.is_pinned(block)


def _state_changes(scheduler: Scheduler) -> list[StateChange]:
    if not scheduler.slots.used:
        return []
    slots, states = scheduler.slots.take_changed(), scheduler.cache.states.take_changed()
    running = [StateChange(slot, request_id, 0) for slot, request_id in sorted(slots.items())]
    return running + [StateChange(slot, *about) for slot, about in sorted(states.items())]


def block_info(scheduler: Scheduler, block: int) -> BlockInfo:
    """Returns the state and content of a block, between two steps."""
    pool, tables = scheduler.pool, scheduler.tables
    holders = tables.holders(block)
    findable = pool.is_findable(block)
    depth, token_ids = tables.describe(block)
    state = "shared" if len(holders) > 1 else "active" if holders else "cached" if findable else "free"
    return BlockInfo(block, state, holders, depth, list(token_ids), tables.last_use(block), findable)
