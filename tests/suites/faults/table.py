"""The table: where a fault occurs, what it is, and what each client sees of it.

``affected`` says which requests end with ``error``:

- ``one``: a single request;
- ``step``: those that the failing step computes (with ``steps=2``, also those of the step behind it);
- ``all``: every live request, as nothing is left that could continue;
- ``none``: no request.

``after`` says what becomes of the engine: it ``goes on``, its worker process ``is replaced``, or it ``cannot go on``
and says so.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import torch

from roseplay.core.step import DeviceLostError, StepTooLargeError
from roseplay.engine.messages import StepOutput
from tests.suites.faults.inject import Act, Fault, PanicException, changes, raises, raises_after

ALLOCATION = (
    "[enforce fail at alloc_cpu.cpp:124] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
)


def broken(message: str = "an injected fault") -> Act:
    return raises(lambda: RuntimeError(message))


def panics() -> Act:
    return raises(lambda: PanicException("an injected panic"))


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        seam: where the fault occurs.
        fault: what the fault is.
        faults: the faults to inject.
        affected, after: see above.
        error: a regular expression for the affected requests' error.
        early: whether to arm the faults before sending the requests rather than after.
        overlap: whether the engine runs its steps as on a GPU, one ahead.
        steps: how many steps in flight are lost.
    """

    seam: str
    fault: str
    faults: tuple[Fault, ...]
    affected: str = "step"
    after: str = "goes on"
    error: str = "an injected"
    early: bool = False
    overlap: bool = False
    steps: int = 1

    @property
    def name(self) -> str:
        return f"{self.seam}: {self.fault}"


def first_row_is_nan(logits: torch.Tensor) -> torch.Tensor:
    logits = logits.clone()
    logits[0] = float("nan")
    return logits


def too_few_tokens(result: Any) -> Any:
    result.token_ids = result.token_ids[:-1]
    return result


def some_request_ended(scheduler: Any, step: Any, *args: Any) -> bool:
    """Whether this is the step in which the first request gets its last token."""
    return any(
        entry.samples and entry.request.num_output_tokens + 1 >= entry.request.sampling.max_new_tokens
        for entry in step.entries
    )


def some_request_is_told_its_end(tokens: Any, *args: Any) -> bool:
    return any(token.finish_reason is not None for token in tokens)


SCHEDULE = "roseplay.core.scheduler:Scheduler.schedule"
UPDATE = "roseplay.core.scheduler:Scheduler.update"
PACK = "roseplay.model.runner:pack_step"
FORWARD = "roseplay.model.forward:PackedForward.__call__"
DRAW = "roseplay.model.step_sampler:draw"
RESULT = "roseplay.model.launch:LaunchedStep.result"
PUSH = "roseplay.engine.detokenizer:StreamDecoder.push"

AT = 20  # in the middle, when three requests run and one waits


STEP_ROWS = [
    Row("scheduler", "schedule raises", (Fault(SCHEDULE, broken(), AT),), "all"),
    Row("scheduler", "schedule raises (overlap)", (Fault(SCHEDULE, broken(), AT),), "all", overlap=True),
    Row(
        "scheduler",
        "adding a request raises",
        (Fault("roseplay.core.scheduler:Scheduler.add", broken(), 2),),
        "one",
        early=True,
    ),
    Row("scheduler", "update raises", (Fault(UPDATE, broken(), AT),)),
    Row(
        "scheduler",
        "update raises at its end",
        (Fault(UPDATE, raises_after(lambda: RuntimeError("an injected fault")), AT),),
    ),
    Row(
        "scheduler",
        "update raises after a request ended",
        (Fault(UPDATE, raises_after(lambda: RuntimeError("an injected fault")), only=some_request_ended),),
    ),
    Row(
        "scheduler",
        "undoing a failed step raises",
        (Fault(PACK, broken(), AT), Fault("roseplay.core.scheduler:Scheduler.fail", broken("a second fault"))),
        "all",
    ),
    Row(
        "scheduler",
        "update raises after a request ended, and undoing it too",
        (
            Fault(UPDATE, raises_after(lambda: RuntimeError("an injected fault")), only=some_request_ended),
            Fault("roseplay.core.scheduler:Scheduler.fail", broken("an injected second fault")),
        ),
        "all",
    ),
    Row("prepare", "packing raises", (Fault(PACK, broken(), AT),)),
    Row("prepare", "packing raises (overlap)", (Fault(PACK, broken(), AT),), overlap=True),
    Row("prepare", "copying blocks raises", (Fault("roseplay.model.kv_cache:KVCache.copy_blocks", broken(), AT),)),
    Row("prepare", "packing raises three times", (Fault(PACK, broken(), AT, times=3),), "all"),
    Row("forward", "raises", (Fault(FORWARD, broken(), AT),)),
    Row(
        "forward",
        "raises after it wrote",
        (Fault(FORWARD, raises_after(lambda: RuntimeError("an injected fault")), AT),),
    ),
    Row("forward", "raises in the first prompt", (Fault(FORWARD, broken(), 1),)),
    Row("forward", "panics", (Fault(FORWARD, panics(), AT),), "all", "cannot go on"),
    Row("forward", "exits", (Fault(FORWARD, raises(lambda: SystemExit(3)), AT),), "all", "cannot go on", error=""),
    Row(
        "forward",
        "device lost",
        (Fault(FORWARD, raises(lambda: DeviceLostError("an injected loss")), AT),),
        "all",
        "cannot go on",
    ),
    Row("forward", "NaN logits", (Fault(FORWARD, changes(first_row_is_nan), AT),), "one", error="(?i)nan|finite"),
    Row(
        "forward",
        "NaN logits of a prompt",
        (Fault(FORWARD, changes(first_row_is_nan), 6),),
        "one",
        error="(?i)nan|finite",
    ),
    Row("sampler", "raises", (Fault(DRAW, broken(), 15),)),
    Row("sampler", "raises (overlap)", (Fault(DRAW, broken(), 15),), overlap=True),
    Row("sampler", "log-probabilities raise", (Fault("roseplay.model.step_sampler:Logprobs", broken(), 15),)),
    Row("sampler", "tokens do not arrive", (Fault(RESULT, broken(), AT),)),
    Row("sampler", "tokens do not arrive (overlap)", (Fault(RESULT, broken(), AT),), overlap=True, steps=2),
    Row("sampler", "a token is missing", (Fault(RESULT, changes(too_few_tokens), AT),), error="entries"),
    Row("memory", "step too large", (Fault(FORWARD, raises(lambda: StepTooLargeError("injected")), AT),), "none"),
    Row(
        "memory",
        "CUDA out of memory",
        (Fault(FORWARD, raises(lambda: torch.OutOfMemoryError("injected. x")), AT),),
        "none",
    ),
    Row(
        "memory",
        "CUDA out of memory (overlap)",
        (Fault(FORWARD, raises(lambda: torch.OutOfMemoryError("injected. x")), AT),),
        "none",
        overlap=True,
    ),
    Row(
        "memory",
        "CPU allocation fails",
        (Fault(FORWARD, raises(lambda: RuntimeError(f"{ALLOCATION} 8 bytes.")), AT),),
        "none",
    ),
    Row("memory", "MemoryError", (Fault(FORWARD, raises(lambda: MemoryError("injected")), AT),), "none"),
    Row(
        "memory",
        "the sampler finds none",
        (Fault(DRAW, raises(lambda: torch.OutOfMemoryError("injected. x")), 15),),
        "none",
    ),
    Row("publish", "a step's record raises", (Fault("roseplay.engine.worker:step_record", broken(), AT),)),
    Row("publish", "its output cannot be made", (Fault("roseplay.engine.worker:StepOutput", broken(), AT),)),
    Row(
        "publish",
        "its output cannot be made after a request ended",
        (Fault("roseplay.engine.worker:StepOutput", broken(), only=some_request_is_told_its_end),),
    ),
    Row(
        "transport",
        "commands cannot be read",
        (Fault("roseplay.engine.transport:QueueInbox.take", broken(), AT),),
        "all",
        "cannot go on",
    ),
    Row(
        "transport",
        "reading commands panics",
        (Fault("roseplay.engine.transport:QueueInbox.take", panics(), AT),),
        "all",
        "cannot go on",
    ),
    Row(
        "transport",
        "events cannot be read",
        (Fault("roseplay.engine.transport:ThreadTransport.receive", broken(), AT),),
        "all",
        "cannot go on",
    ),
    Row(
        "transport",
        "reading events panics",
        (Fault("roseplay.engine.transport:ThreadTransport.receive", panics(), AT),),
        "all",
        "cannot go on",
    ),
    Row("detokeniser", "a decoder raises", (Fault(PUSH, broken(), 20),), "one"),
    Row("detokeniser", "a decoder panics", (Fault(PUSH, panics(), 20),), "one"),
    Row("detokeniser", "a decoder panics at its first token", (Fault(PUSH, panics(), 1),), "one"),
    Row("detokeniser", "a decoder panics at its last token", (Fault(PUSH, panics(), 70),), "one"),
    Row(
        "detokeniser",
        "a stop string search raises",
        (Fault("roseplay.engine.detokenizer:StopStrings.push", broken(), 20),),
        "one",
    ),
    Row(
        "receiver",
        "telemetry raises",
        (Fault("roseplay.engine.telemetry:Telemetry.add", broken(), 15),),
        "all",
        "cannot go on",
    ),
]


def sends_garbage(call: Any, connection: Any, message: Any) -> None:
    connection.send_bytes(b"\x80garbage")


def hangs_up(call: Any, connection: Any, message: Any) -> None:
    connection.close()
    call()


def ends_the_process(call: Any, *args: Any) -> None:
    os._exit(7)


def crashes(call: Any, *args: Any) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # without faulthandler's output
    os.kill(os.getpid(), signal.SIGSEGV)


def is_step(connection: Any, message: Any) -> bool:
    return isinstance(message, StepOutput) and bool(message.tokens)


SEND = "multiprocessing.connection:Connection.send"
_IN_A_WORKER = [
    Row("forward", "raises in a process", (Fault(FORWARD, broken(), AT),)),
    Row("forward", "panics in a process", (Fault(FORWARD, panics(), AT),), "all", "is replaced"),
    Row("forward", "ends the process", (Fault(FORWARD, ends_the_process, AT),), "all", "is replaced", error="code 7"),
    Row("forward", "crashes the process", (Fault(FORWARD, crashes, AT),), "all", "is replaced", error="code -11"),
    Row(
        "publish",
        "a step cannot be pickled",
        (Fault("roseplay.engine.messages:StepOutput.__reduce__", broken(), AT),),
    ),
    Row(
        "transport",
        "garbage in the pipe",
        (Fault(SEND, sends_garbage, 10, only=is_step),),
        "all",
        "is replaced",
        error="",
    ),
    Row(
        "transport", "the pipe breaks", (Fault(SEND, hangs_up, 10, only=is_step),), "all", "is replaced", error="ended"
    ),
    Row(
        "transport",
        "commands cannot be read in a process",
        (Fault("roseplay.engine.transport:QueueInbox.take", broken(), AT),),
        "all",
        "is replaced",
    ),
]
WORKER_ROWS = {row.name.replace(" ", "-").replace(":", ""): row for row in _IN_A_WORKER}
