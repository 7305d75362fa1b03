"""A runner that computes no model: each step takes as long as its cost model says, and its tokens are a fixed text."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import EngineConfig
from roseplay.core.info import Choice, EngineInfo, FreeMemory
from roseplay.core.request import Request
from roseplay.core.step import Step, StepResult, TokenLogprobs
from roseplay.extras.simulation.cost import GRAPH_SIZES, CostModel, StepLoad
from roseplay.extras.simulation.evidence import Evidence
from roseplay.extras.simulation.gpus import SimulationError
from roseplay.extras.simulation.memory import STEP_TOKENS, choose_num_blocks

NO_LOGPROBS = "a simulated model has no log-probabilities"
CPU_STEP_S = 10.0  # seconds that a step on a CPU should not exceed, as in ``model/speed.py``
_UNLIMITED = 2**60  # bytes: a simulated engine takes no memory, so that any number of them fits beside another


class SimulatedStep:
    """A step that the simulated device has computed at ``end_ns``."""

    def __init__(self, step_result: StepResult, clock: Clock, end_ns: int) -> None:
        self._result = step_result
        self._clock = clock
        self._end_ns = end_ns

    def result(self) -> StepResult:
        """Wait until the step has ended and return its result."""
        while (left_ns := self._end_ns - self._clock.now_ns()) > 0:
            self._clock.wait(threading.Event(), left_ns / 1e9)
        return self._result


class SimulatedRunner:
    """Executes steps like ``roseplay.model.runner.ModelRunner``, on hardware that is not here.

    Steps run one after the other on a simulated device. ``launch`` returns at once and ``result`` waits for the device,
    so that the host's work overlaps with it as on a GPU. On a virtual clock, waiting only advances the clock.

    Args:
        cost: the durations of steps.
        evidence: what stands behind them.
        config: sizes the KV pool (see ``choose_num_blocks``) and limits the context.
        clock: in whose time the steps take place; must be the worker's.
        text: token ids of the answers. Each begins with the first of them, or, if its request samples, with one that its
            seed chooses.

    Raises:
        SimulationError: the model does not fit, or ``max_model_len`` is more than it allows.
    """

    def __init__(
        self,
        cost: CostModel,
        evidence: Evidence,
        config: EngineConfig,
        clock: Clock = SYSTEM_CLOCK,
        text: Sequence[int] = range(1, 100),
    ) -> None:
        self.cost, self.evidence = cost, evidence
        self.runs_ahead = not cost.gpu.cpu
        self.block_size = config.block_size
        self.logits_bytes = 4 * cost.shape.vocab
        self.memory_limit: int | None = None if cost.gpu.cpu else STEP_TOKENS
        self.eos_token_ids: frozenset[int] = frozenset()
        self._clock = clock
        self.text = tuple(token % cost.shape.vocab for token in text)
        self._repeated = self.text  # as often as the longest run of tokens needs it
        length, limit = config.max_model_len, cost.shape.max_len
        if length is not None and length > limit:
            raise SimulationError(
                f"max_model_len is {length:,}, but {cost.shape.name} allows {limit:,}: set it to that or less"
            )
        self.max_model_len = length or limit
        self.num_blocks = choose_num_blocks(cost, config, self.max_model_len)
        self._free_ns = 0  # when the device has computed all that was launched
        self._last: tuple[Step | None, float] = (None, 0.0)

    @property
    def max_step_tokens(self) -> int | None:
        """Tokens of the largest step: on a CPU, as many as take ``CPU_STEP_S`` halfway through the longest prompt."""
        if not self.cost.gpu.cpu:
            return self.memory_limit
        return max(16, self.block_size, self.cost.prompt_tokens_in(CPU_STEP_S, self.max_model_len / 2))

    @property
    def token_cost(self) -> float:
        return 0.0  # nothing is guessed here

    @property
    def hardware(self) -> str:
        """The simulated hardware in words: ``2 x H100 SXM``."""
        count = self.cost.tensor_parallel
        return f"{count} x {self.cost.gpu.title}" if count > 1 else self.cost.gpu.title

    def info(self) -> EngineInfo:
        shape = self.cost.shape
        one, two = (self.cost.seconds(self.cost.prompt(tokens)) for tokens in (1, 1025))
        unmodelled = f"; not modelled: {shape.unmodelled}" if shape.unmodelled else ""
        return EngineInfo(
            model=shape.name,
            architecture=shape.architecture,
            device=f"simulated {self.hardware}",
            dtype="bfloat16",
            attention="simulated",
            num_parameters=shape.num_parameters,
            weight_bytes=int(shape.bytes_read(_UNLIMITED)),
            vocab_size=shape.vocab,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_model_len=self.max_model_len,
            kv_bytes_per_token=shape.kv_bytes_per_token(self.cost.tensor_parallel) * self.cost.tensor_parallel,
            threads=0,
            cuda_graphs=len(GRAPH_SIZES) if self.cost.pads else 0,
            max_step_tokens=self.max_step_tokens,
            choices=(
                Choice("durations of steps", f"simulated, {self.hardware}", f"{self.evidence}{unmodelled}"),
                Choice("answers", "a fixed text", "no model is computed"),
                Choice("weights", shape.weights, f"KV cache in {shape.kv}"),
            ),
            decode_s=one,
            prompt_token_s=(two - one) / 1024,
            simulated=f"{self.hardware}, {self.evidence}",
            evidence=self.evidence.label,
            evidence_kind=self.evidence.kind,
        )

    def predict_s(self, step: Step) -> float:
        """Returns how many seconds a step takes."""
        last, seconds = self._last
        if last is not step:
            seconds = self.cost.seconds(StepLoad.of_step(step, cpu=self.cost.gpu.cpu))
            self._last = step, seconds
        return seconds

    def execute(self, step: Step) -> StepResult:
        """Run one step and wait for its end."""
        return self.launch(step).result()

    def launch(self, step: Step) -> SimulatedStep:
        """Begin a step on the device, after those that were launched before."""
        launched_ns = self._clock.now_ns()
        took_ns = round(self.predict_s(step) * 1e9)
        self._free_ns = max(launched_ns, self._free_ns) + took_ns
        return SimulatedStep(self._result(step, took_ns), self._clock, self._free_ns)

    def _result(self, step: Step, took_ns: int) -> StepResult:
        computed = any(entry.num_tokens for entry in step.entries)
        replayed = self.cost.pads and step.cuda_graphs and not step.prompt_tokens
        replayed = replayed and len(step.entries) <= GRAPH_SIZES[-1]
        result = StepResult(
            [self.token(entry.request) if entry.samples else None for entry in step.entries],
            [None] * len(step.entries),
            device_ns=took_ns,
            replayed=replayed if computed else None,
        )
        for index, positions in step.prompt_logprobs.items():
            result.errors[index] = NO_LOGPROBS
            result.prompt_logprobs[index] = [TokenLogprobs(0.0, []) for _ in positions]
        for index, entry in enumerate(step.entries):
            if entry.samples and entry.request.sampling.logprobs is not None:
                result.errors[index] = NO_LOGPROBS
        return result

    def token(self, request: Request) -> int:
        """Returns the request's next token; one that a step in flight draws counts as drawn."""
        return self.text[self._place(request)]

    def tokens(self, request: Request, count: int) -> Sequence[int]:
        place = self._place(request)
        if place + count > len(self._repeated):
            self._repeated = self.text * (2 * (place + count) // len(self.text) + 1)
        return self._repeated[place : place + count]

    def _place(self, request: Request) -> int:
        first = request.seed if request.sampling.temperature > 0 else 0
        return (first + request.num_output_tokens) % len(self.text)

    def free_memory(self) -> FreeMemory:
        return FreeMemory(_UNLIMITED, _UNLIMITED, self.cost.gpu.memory_bytes)

    def clear(self) -> None:
        """Do nothing: no logits are saved."""

    def close(self) -> None:
        """Do nothing: it holds no memory."""
