"""One measured run of a workload on an arm's engine, from a cold cache, and the record of any run in the result."""

from __future__ import annotations

import hashlib
import json
import statistics
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roseplay.config import Knobs
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.engine_like import EngineLike
from roseplay.engine.records import StepRecord
from roseplay.engine.request_metrics import RequestMetrics
from roseplay.extras.lab.document import Request, Run, Step
from roseplay.extras.lab.progress import RunProgress
from roseplay.extras.lab.types import ArmName
from roseplay.extras.simulation.step_summaries import StepSummary
from roseplay.traffic.driver import Driver, Played
from roseplay.traffic.metrics import ms, percentile
from roseplay.traffic.workload import Workload

POLL_S = 0.05
CLOSE_S = 0.3  # after which an engine's process is killed, so that Stop does not wait for a step


class StoppedError(Exception):
    """The experiment was stopped."""


class RunError(RuntimeError):
    """A run failed; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class RunTerms:
    """How a workload is run; setting ``stop`` ends it, and ``progress`` is told how many requests have ended."""

    stop: threading.Event
    time_limit_s: float  # of this machine, also for a simulated arm
    keep_cache: bool = False
    clients: int | None = None  # as many send the requests one after the other
    durations: float = 1.0  # factor of all steps' durations, for a simulated arm
    progress: RunProgress | None = None


class PlayedArm:
    """An arm whose runs are played on an engine or another server. ``SimulatedArm`` has the same methods."""

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    @property
    def tokenizer(self) -> Any:
        return self._engine.tokenizer

    def free_memory(self) -> FreeMemory:
        return self._engine.free_memory()

    def set_knobs(self, **changes: Any) -> Knobs:
        return self._engine.set_knobs(**changes)

    def close(self) -> None:
        self._engine.close(CLOSE_S)

    def run(self, workload: Workload, terms: RunTerms) -> MeasuredRun:
        """Play the workload, from a cold cache unless it is kept; steps take as long as they do.

        Raises:
            StoppedError: the stop was set; requests may still be running.
            RunError: a request was refused or failed, or the run took too long.
        """
        engine = self._engine
        if not terms.keep_cache:
            workload = _from_cold(engine, workload)
        reader = engine.telemetry.reader()
        records: list[StepRecord] = []
        on_sent = None if terms.progress is None else terms.progress.sent.append
        driver = Driver(engine, workload, time_limit_s=terms.time_limit_s, on_sent=on_sent, clients=terms.clients)
        playing = driver.start()
        while True:
            try:
                played = playing.result(POLL_S)
                break
            except TimeoutError:
                records += reader.steps()
            if terms.stop.is_set():
                driver.stop()
                raise StoppedError
        if terms.stop.is_set():
            raise StoppedError
        _check(played, terms.time_limit_s)
        if engine.capabilities.inspect:
            engine.inspect_block(1)  # returns after the record of the last step has arrived
        records += reader.steps()
        return MeasuredRun.of_played(played, [record for record in records if record.entries])


def _from_cold(engine: EngineLike, workload: Workload) -> Workload:
    """Clear the prefix cache. If that is impossible, return the prompts with a beginning that is unique to this run."""
    if engine.capabilities.clear_cache:
        engine.clear_cache()
        return workload
    salt = f"Run {uuid.uuid4().hex[:8]}."
    return [replace(arrival, prompt=_begun(salt, arrival.prompt)) for arrival in workload]


def _begun(salt: str, prompt: Any) -> Any:
    if isinstance(prompt, str):
        return f"{salt} {prompt}"
    first, *rest = prompt
    return [{**first, "content": f"{salt} {first['content']}"}, *rest] if isinstance(first, Mapping) else prompt


def _check(played: Played, time_limit_s: float) -> None:
    if played.stopped is not None:
        raise RunError(f"a run took longer than {time_limit_s:g} s: send less")
    if refused := [outcome.refused for outcome in played.outcomes if outcome.refused is not None]:
        raise RunError(f"{len(refused)} of {len(played.outcomes)} requests were refused: {refused[0]}")
    cut = [o.stream for o in played.outcomes if o.stream and str(o.stream.finish_reason) not in ("stop", "length")]
    if cut:
        raise RunError(f"{len(cut)} of {len(played.outcomes)} requests failed: {cut[0].error or cut[0].finish_reason}")


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """One answered request of a run; times in ns of the engine's clock."""

    due_ns: int  # its intended arrival
    submit_start_ns: int  # start and end of the call of ``submit``
    submit_end_ns: int
    metrics: RequestMetrics
    tokens: Sequence[int] | str  # ids of its answer, or its text if they are not known
    reason: str  # why it ended
    tenant: str | None = None  # whose it is; ``None`` for nobody's


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run before it is written into the result."""

    answers: Sequence[MeasuredAnswer]  # to each request of the workload, in order
    steps: Iterable[StepSummary]  # all that did any work
    # Whether its times grow with its length, for a simulated one; ``None`` for a measured one.
    saturated: bool | None = None
    recomputed_tokens: int | None = None  # what preemptions cost; ``None`` for a simulated one
    moved_blocks: int | None = None
    masked: Sequence[StepRecord] = ()  # the steps that had masks of structured outputs

    @classmethod
    def of_played(cls, played: Played, steps: Iterable[StepRecord]) -> MeasuredRun:
        """Returns the run of a workload that was played, all of whose requests were answered."""
        answers = [
            MeasuredAnswer(
                outcome.due_ns,
                outcome.submit_start_ns,
                outcome.submit_end_ns,
                stream.metrics,
                stream.token_ids or stream.text,
                str(stream.finish_reason),
                outcome.arrival.params.tenant,
            )
            for outcome in played.outcomes
            if (stream := outcome.stream) is not None
        ]
        records = list(steps)
        return cls(
            answers,
            [_row(step) for step in records],
            recomputed_tokens=sum(step.recomputed_tokens for step in records),
            moved_blocks=sum(step.swapped_out + step.swapped_in for step in records),
            masked=[step for step in records if step.mask_ms],
        )


def _row(step: StepRecord) -> StepSummary:
    blocks = step.blocks_active + step.blocks_shared
    work = (step.start_ns, step.end_ns, step.prompt_tokens, step.decode_tokens)
    return StepSummary(*work, step.running, step.waiting, blocks)


def run_record(
    arm: ArmName, repeat: int, run: MeasuredRun, told: Capabilities | None = None, block_bytes: int = 0
) -> Run:
    """Returns a run in the result's format; times are in ms since the first submit.

    Args:
        told: what the engine reports; by default everything.
        block_bytes: bytes of a KV block; 0 if that is not known.
    """
    told = told or Capabilities()
    zero_ns = run.answers[0].submit_start_ns
    metrics = [answer.metrics for answer in run.answers]
    ended_ns = max(m.finished_ns or zero_ns for m in metrics)
    tokens = json.dumps([answer.tokens for answer in run.answers], separators=(",", ":"))
    moved_blocks = run.moved_blocks if told.steps and block_bytes else None
    record: Run = {
        "arm": arm,
        "repeat": repeat,
        "seconds": round((ended_ns - zero_ns) / 1e9, 4),
        "requests": [_request(index, answer, zero_ns) for index, answer in enumerate(run.answers)],
        "itl_ms": [round(gap / 1e6, 2) for m in metrics for gap in m.itl_ns],
        "steps": [_step(step, zero_ns) for step in run.steps],
        "tokens_sha256": hashlib.sha256(tokens.encode()).hexdigest(),
        "saved_tokens": sum(m.saved_tokens for m in metrics) if told.cached_tokens else None,
        "preemptions": sum(m.num_preemptions for m in metrics) if told.steps else None,
        "recomputed_tokens": None if moved_blocks is None else run.recomputed_tokens,
        "moved_mb": None if moved_blocks is None else moved_blocks * block_bytes / 1e6,
    }
    if run.masked:
        record["mask_ms"] = round(statistics.median(step.mask_ms for step in run.masked), 4)
        record["mask_wait_ms"] = round(statistics.median(step.mask_wait_ms for step in run.masked), 4)
    if run.saturated is not None:
        record["saturated"] = run.saturated
    return record


def _request(index: int, answer: MeasuredAnswer, zero_ns: int) -> Request:
    metrics = answer.metrics
    gaps = sorted(metrics.itl_s)
    first_ns = metrics.first_token_ns
    request: Request = {
        "index": index,
        "arrival_ms": round((answer.submit_start_ns - zero_ns) / 1e6, 2),
        "intended_arrival_ms": round((answer.due_ns - zero_ns) / 1e6, 2),
        "prompt_tokens": metrics.prompt_tokens,
        "completion_tokens": metrics.completion_tokens,
        "submit_ms": round((answer.submit_end_ns - answer.submit_start_ns) / 1e6, 3),
        "queue_ms": ms(metrics.queue_s),
        "ttft_ms": ms(metrics.ttft_s),
        "ttft_from_arrival_ms": ms(None if first_ns is None else (first_ns - answer.due_ns) / 1e9),
        "tpot_ms": ms(metrics.tpot_s),
        "e2e_ms": ms(metrics.e2e_s),
        "itl_p99_ms": ms(percentile(gaps, 99)),
        "itl_max_ms": ms(gaps[-1] if gaps else None),
        "reason": answer.reason,
    }
    if answer.tenant is not None:
        request["tenant"] = answer.tenant
    return request


def _step(step: StepSummary, zero_ns: int) -> Step:
    start, end = (round((time_ns - zero_ns) / 1e6, 2) for time_ns in (step.start_ns, step.end_ns))
    return start, end, step.prompt_tokens, step.decode_tokens, step.running, step.waiting, step.blocks
