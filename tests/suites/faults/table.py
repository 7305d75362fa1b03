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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from roseplay.core.step import DeviceLostError
from roseplay.engine.messages import StepOutput
from tests.suites.faults.inject import Act, Fault, PanicException


def raising(make: Callable[[], BaseException], *, after: bool = False) -> Act:
    """Raise instead of calling the target, or after it."""

    def act(call: Callable[[], Any], *args: Any) -> Any:
        if after:
            call()
        raise make()

    return act


RAISES = raising(lambda: RuntimeError("an injected fault"))
RAISES_AFTER = raising(lambda: RuntimeError("an injected fault"), after=True)
PANICS = raising(lambda: PanicException("an injected panic"))
NO_MEMORY = raising(lambda: torch.OutOfMemoryError("injected. x"))


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    seam: str  # where the fault occurs
    fault: str  # what the fault is
    faults: tuple[Fault, ...]  # the faults to inject
    affected: str = "step"  # see above
    after: str = "goes on"
    error: str = "an injected"  # a regular expression for the affected requests' error
    early: bool = False  # whether to arm the faults before sending the requests rather than after
    overlap: bool = False  # whether the engine runs its steps as on a GPU, one ahead
    steps: int = 1  # how many steps in flight are lost

    @property
    def name(self) -> str:
        return f"{self.seam}: {self.fault}"


def first_row_is_nan(call: Callable[[], torch.Tensor], *args: Any) -> torch.Tensor:
    logits = call().clone()
    logits[0] = float("nan")
    return logits


def too_few_tokens(call: Callable[[], Any], *args: Any) -> Any:
    result = call()
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


UPDATE = "roseplay.core.scheduler:Scheduler.update"
FAIL = "roseplay.core.scheduler:Scheduler.fail"
PACK = "roseplay.model.runner:pack_step"
FORWARD = "roseplay.model.forward:PackedForward.__call__"
DRAW = "roseplay.model.step_sampler:draw"
RESULT = "roseplay.model.launch:LaunchedStep.result"
OUTPUT = "roseplay.engine.worker:StepOutput"
COMMANDS = "roseplay.engine.transport:QueueInbox.take"
PUSH = "roseplay.engine.detokenizer:StreamDecoder.push"

AT = 20  # in the middle, when three requests run and one waits


def at(target: str, act: Act = RAISES, call: int = AT, **how: Any) -> tuple[Fault, ...]:
    return (Fault(target, act, call, **how),)


def when(condition: Callable[..., bool], target: str, act: Act = RAISES) -> tuple[Fault, ...]:
    return (Fault(target, act, only=condition),)


STEP_ROWS = [
    Row("scheduler", "schedule raises", at("roseplay.core.scheduler:Scheduler.schedule"), "all"),
    Row("scheduler", "adding a request raises", at("roseplay.core.scheduler:Scheduler.add", call=2), "one", early=True),
    Row("scheduler", "update raises", at(UPDATE)),
    Row("scheduler", "update raises after a request ended", when(some_request_ended, UPDATE, RAISES_AFTER)),
    Row("scheduler", "undoing a failed step raises", (*at(PACK), *at(FAIL, call=1)), "all"),
    Row(
        "scheduler",
        "update raises after a request ended, and undoing it too",
        (*when(some_request_ended, UPDATE, RAISES_AFTER), *at(FAIL, call=1)),
        "all",
    ),
    Row("prepare", "packing raises (overlap)", at(PACK), overlap=True),
    Row("prepare", "packing raises three times", at(PACK, times=3), "all"),
    Row("prepare", "copying blocks raises", at("roseplay.model.kv_cache:KVCache.copy_blocks")),
    Row("forward", "raises", at(FORWARD)),
    Row("forward", "raises after it wrote", at(FORWARD, RAISES_AFTER)),
    Row("forward", "panics", at(FORWARD, PANICS), "all", "cannot go on"),
    Row(
        "forward",
        "device lost",
        at(FORWARD, raising(lambda: DeviceLostError("an injected loss"))),
        "all",
        "cannot go on",
    ),
    Row("forward", "NaN logits", at(FORWARD, first_row_is_nan), "one", error="(?i)nan|finite"),
    Row("sampler", "raises", at(DRAW, call=15)),
    Row("sampler", "tokens do not arrive (overlap)", at(RESULT), overlap=True, steps=2),
    Row("sampler", "a token is missing", at(RESULT, too_few_tokens), error="entries"),
    Row("memory", "CUDA out of memory", at(FORWARD, NO_MEMORY), "none"),
    Row("memory", "CUDA out of memory (overlap)", at(FORWARD, NO_MEMORY), "none", overlap=True),
    Row("memory", "the sampler finds none", at(DRAW, NO_MEMORY, 15), "none"),
    Row("publish", "a step's record raises", at("roseplay.engine.worker:step_record")),
    Row("publish", "its output cannot be made", at(OUTPUT)),
    Row("publish", "its output cannot be made after a request ended", when(some_request_is_told_its_end, OUTPUT)),
    Row("transport", "commands cannot be read", at(COMMANDS), "all", "cannot go on"),
    Row(
        "transport",
        "reading events panics",
        at("roseplay.engine.transport:ThreadTransport.receive", PANICS),
        "all",
        "cannot go on",
    ),
    Row("detokeniser", "a decoder panics", at(PUSH, PANICS), "one"),
    Row("receiver", "telemetry raises", at("roseplay.engine.telemetry:Telemetry.add", call=15), "all", "cannot go on"),
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
    Row("forward", "raises in a process", at(FORWARD)),
    Row("forward", "panics in a process", at(FORWARD, PANICS), "all", "is replaced"),
    Row("forward", "ends the process", at(FORWARD, ends_the_process), "all", "is replaced", error="code 7"),
    Row("forward", "crashes the process", at(FORWARD, crashes), "all", "is replaced", error="code -11"),
    Row("publish", "a step cannot be pickled", at("roseplay.engine.messages:StepOutput.__reduce__")),
    Row("transport", "garbage in the pipe", at(SEND, sends_garbage, 10, only=is_step), "all", "is replaced", error=""),
    Row("transport", "the pipe breaks", at(SEND, hangs_up, 10, only=is_step), "all", "is replaced", error="ended"),
    Row("transport", "commands cannot be read in a process", at(COMMANDS), "all", "is replaced"),
]
WORKER_ROWS = {row.name.replace(" ", "-").replace(":", ""): row for row in _IN_A_WORKER}
