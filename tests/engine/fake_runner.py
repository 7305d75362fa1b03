"""A model runner without a model, and both ends of a worker's messages, to drive the engine's loop step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.step import Step, StepResult, TokenLogprobs
from roseplay.engine.messages import Command, Event, Finished, NewToken, Shutdown, StepOutput, Submit
from roseplay.engine.runner import Done
from roseplay.engine.structured import CompilingInbox
from roseplay.engine.worker import Worker
from roseplay.model.grammar import Matcher
from tests.core.device import WHY, Device, Truth

MEMORY = FreeMemory(5, 6, 7)


@dataclass
class Failing:
    """A launched step that turns out to have failed."""

    runner: FakeRunner
    error: Exception

    def result(self) -> StepResult:
        self.runner.broken = False
        raise self.error


class SkippingClock:
    """The system's clock, which also goes on when time is skipped."""

    def __init__(self) -> None:
        self._skipped_ns = 0

    def now_ns(self) -> int:
        return SYSTEM_CLOCK.now_ns() + self._skipped_ns

    def skip(self, seconds: float) -> None:
        self._skipped_ns += round(seconds * 1e9)


class FakeRunner:
    """Executes steps on a ``Device``, which checks what they read; faults are set by step id."""

    def __init__(self, num_blocks: int = 40, block_size: int = 4, runs_ahead: bool = False) -> None:
        self.num_blocks, self.block_size, self.runs_ahead = num_blocks, block_size, runs_ahead
        self.logits_bytes = 2**20
        self.memory_limit: int | None = None
        self.eos_token_ids: frozenset[int] = frozenset()
        self.max_step_tokens: int | None = None
        self.token_cost = 0.0
        self.device = Device(num_blocks, block_size)
        self.at_launch: dict[int, Exception] = {}
        self.later: dict[int, Exception] = {}
        self.nan: dict[int, int] = {}
        self.predicted_s = self.takes_s = 0.0
        self.simulated: str | None = None
        self.steps: list[Step] = []
        self.launched: list[int] = []
        self.cleared = 0
        self.closed = False
        self.broken = False  # a launched step will fail, and so will the one launched behind it
        self.wrong: list[AssertionError] = []
        self.clock = SkippingClock()

    def info(self) -> EngineInfo:
        sizes = {"num_parameters": 0, "weight_bytes": 0, "vocab_size": 50, "kv_bytes_per_token": 1, "threads": 1}
        texts = {"model": "fake", "architecture": "Fake", "device": "cpu", "dtype": "float32", "attention": "none"}
        texts["simulated"] = self.simulated
        return EngineInfo(**texts, **sizes, block_size=self.block_size, num_blocks=self.num_blocks, max_model_len=200)

    def predict_s(self, step: Step) -> float:
        return self.predicted_s if step.entries else 0.0

    def free_memory(self) -> FreeMemory:
        return MEMORY

    def clear(self) -> None:
        self.cleared += 1

    def close(self) -> None:
        self.closed = True

    def execute(self, step: Step) -> StepResult:
        self.steps.append(step)
        self.clock.skip(self.takes_s)
        for entry in step.entries:
            if entry.request.request_id not in self.device.truths:
                self.device.truths[entry.request.request_id] = Truth(self.device.histories, entry.request)
        if step.step_id in self.at_launch:
            self.device.spoil(step)
            raise self.at_launch[step.step_id]
        if step.step_id in self.later or self.broken:
            self.device.spoil(step)
            return StepResult([], [])
        try:
            result = self.device.execute(step, self.nan.get(step.step_id))
        except AssertionError as error:  # the worker treats it as a fault of the step
            self.wrong.append(error)
            raise
        for index, entry in enumerate(step.entries):
            token = result.token_ids[index]
            if entry.request.sampling.logprobs is not None and token is not None:
                result.logprobs[index] = TokenLogprobs(-float(token), [])
        result.prepare_ns, result.forward_ns, result.sample_ns, result.device_ns, result.replayed = 1, 2, 3, 2, True
        return result

    def launch(self, step: Step) -> Done | Failing:
        self.launched.append(step.step_id)
        result = self.execute(step)
        error = self.later.get(step.step_id, RuntimeError("behind") if self.broken else None)
        self.broken = error is not None
        return Failing(self, error) if error is not None else Done(result)


class Loop:
    """A worker that runs in this thread on a script, each part of which is what its inbox returns on one call.

    A part may be a function that returns the commands. Once the script is over and no work is left, the worker is shut
    down.
    """

    def __init__(
        self,
        runner: FakeRunner | None = None,
        *,
        eos: Iterable[int] = (),
        seed: int = 0,
        config: EngineConfig | None = None,
        start: Callable[[str, int], Future[Matcher]] | None = None,
        **knobs: object,
    ):
        self.runner = runner or FakeRunner()
        self.events: list[Event] = []
        self.waits: list[float | None] = []
        self._is_over = False
        self.refuse: Callable[[Event], Exception | None] = lambda event: None
        self.script: list[list[Command] | Callable[[], list[Command]]] = []
        self.runner.eos_token_ids = frozenset(eos)
        config = config or EngineConfig(seed=seed)
        inbox = self if start is None else CompilingInbox(self, start)
        self.worker = Worker(self.runner, config, Knobs(**knobs), inbox, self._send, clock=self.runner.clock)

    def run(self, *script: list[Command] | Callable[[], list[Command]]) -> None:
        self.script = list(script)
        self.worker.run()
        if self.runner.wrong:
            raise self.runner.wrong[0]

    def take(self, timeout: float | None) -> list[Command]:
        self.waits.append(timeout)
        assert len(self.waits) < 2_000, "the loop does not become idle"
        if self.script:
            part = self.script.pop(0)
            return part() if callable(part) else part
        if timeout is not None:
            self.runner.clock.skip(timeout)  # in slow motion
            return []
        self._is_over = True
        return [Shutdown()]

    def _send(self, event: Event) -> None:
        error = self.refuse(event)
        if error is not None:
            raise error
        if not self._is_over:
            self.events.append(event)

    def sent(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def outputs(self) -> list[StepOutput]:
        return self.sent(StepOutput)

    def tokens(self, request_id: int) -> list[int]:
        return [token.token_id for token in self.all_tokens if token.request_id == request_id]

    @property
    def all_tokens(self) -> list[NewToken]:
        return [token for output in self.outputs for token in output.tokens]

    @property
    def finished(self) -> list[Finished]:
        return [finished for output in self.outputs for finished in output.finished]

    def ends(self) -> dict[int, str]:
        """The first reported reason why each request ended; the client ignores later ones."""
        ends: dict[int, str] = {}
        for output in self.outputs:
            for token in output.tokens:
                if token.finish_reason is not None:
                    ends.setdefault(token.request_id, token.finish_reason.value)
            for finished in output.finished:
                ends.setdefault(finished.request_id, finished.reason.value)
        return ends

    def answer(self, request_id: int) -> list[int]:
        """The tokens that the request must get if nothing disturbs it."""
        truth = self.runner.device.truths[request_id]
        return truth.tokens[truth.request.num_prompt_tokens :]

    def check_answers(self) -> None:
        """Requests that were served to their end got the right tokens, and all blocks were freed."""
        ends = self.ends()
        for request_id, reason in ends.items():
            if reason in ("stop", "length"):
                assert self.tokens(request_id) == self.answer(request_id)
        pool = self.worker.scheduler.pool
        assert pool.num_available == pool.num_usable


def submit(request_id: int, prompt: Iterable[int] = (1, 2, 3), max_new_tokens: int = 4, **sampling: object) -> Submit:
    params = SamplingParams(max_new_tokens=max_new_tokens, **sampling)
    return Submit(request_id, list(prompt), params, submitted_ns=0)


__all__ = ["MEMORY", "WHY", "FakeRunner", "Loop", "submit"]
