"""How long one step takes: a sum of terms, each with one parameter; five on GPUs, and three more on a CPU.

In words: the host's work per layer, the bytes of weights and KV cache at a share of the memory's bandwidth, work per
sequence and layer, the prompts' operations at a share of the matrix rate, and the exchange between the GPUs of a tensor
parallel group at a share of the link's rate. A sum, and not the larger of reading and computing, fits the published
steps better, and is linear in ``Parameters.as_vector``, so that calibration is one least-squares call. On a CPU, attention is
bound by arithmetic rather than by the memory: it has a term for tokens that attend one by one, and one for long prompts. A third is
the host's work of a step with a long prompt, which is not replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from roseplay.core.step import Step
from roseplay.extras.simulation.gpus import GPU, SimulationError
from roseplay.extras.simulation.limits import Overhead, Share
from roseplay.extras.simulation.model_shape import ModelShape

# Sizes, in sequences, to which a decode step is padded where it is replayed as a CUDA graph; larger steps are not padded.
GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
# The host's work per layer of a step on a CPU, from which a fit starts.
_CPU_LAYER_S = 150e-6
_LONGEST_S = 600.0  # of a step of one token; with longer ones, the ns of a run might not fit into 64 bits
# On a CPU, each token of a part of at most so many tokens attends by itself, like a decode (``kernels.cpu.attention.plan``),
# and steps of such parts are replayed if they have at most so many tokens (``kernels.cpu.recorded_steps``).
CPU_SHORT_PART, CPU_REPLAYED_TOKENS = 32, 512


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a step's duration. They are fitted to points, and are no facts about the hardware."""

    memory_share: Share = 0.90  # share of the memory's bandwidth at which weights and KV cache are read
    layer_s: Overhead = 55e-6  # seconds per layer, whatever the step's size
    sequence_s: Overhead = 0.42e-6  # seconds per layer and sequence
    compute_share: Share = 0.67  # share of the matrix rate at which prompts are computed
    link_share: Share = 0.43  # share of the link's bandwidth at which GPUs exchange activations
    # Share of the memory's bandwidth at which a CPU reads the KV cache for tokens that attend one by one; this and the
    # next two are no part of a GPU's steps.
    cpu_kv_share: Share = 0.3
    cpu_attention_share: Share = 0.5  # share of the matrix rate at which a CPU computes the attention of long prompts
    cpu_eager_s: Overhead = 4e-3  # seconds that a CPU's step takes longer if it is not replayed
    # Seconds of a server besides its steps before a request's first token; not part of a step.
    server_s: Overhead = 8e-3

    @classmethod
    def default(cls, gpu: GPU, weights: str) -> Self:
        """Returns the defaults: fitted to steps of Qwen3-8B on one H100 and of Qwen3-32B on one to eight B300.

        Where weights are multiplied at the rate of fp8, a smaller share of it is reached: 0.40 to 0.45.
        """
        return cls() if gpu.flops(weights) == gpu.flops("bf16") else cls(compute_share=0.425)

    @classmethod
    def start(cls, gpu: GPU, shape: ModelShape) -> Self:
        """Returns the parameters of a model before any calibration: the defaults, or those of a CPU.

        A CPU multiplies the rows of a decode step no faster than those of prompts, and does not read weights meanwhile.
        """
        defaults = cls.default(gpu, shape.weights)
        if not gpu.cpu:
            return defaults
        row_s = 2.0 * (shape.active + shape.output) / (defaults.compute_share * gpu.flops(shape.weights))
        return replace(defaults, layer_s=_CPU_LAYER_S, sequence_s=row_s / shape.layers)

    def as_vector(self) -> np.ndarray:
        """Returns ``[8]`` float64 coefficients in which a step's duration is linear: of shares, the inverse."""
        return np.array([_turned(name, getattr(self, name)) for name in _OF_STEPS])

    def with_vector(self, coefficients: np.ndarray) -> Self:
        """Returns the parameters with these coefficients, all positive."""
        values = zip(_OF_STEPS, map(float, coefficients), strict=True)
        return replace(self, **{name: _turned(name, value) for name, value in values})


_OF_STEPS = tuple(field.name for field in fields(Parameters) if field.name != "server_s")


def _turned(name: str, value: float) -> float:
    return 1 / value if name.endswith("_share") else value


@dataclass(slots=True)
class StepLoad:
    """What a step computes, in the quantities that its duration depends on."""

    sequences: int = 0  # requests that compute a token; of a padded step, as many as it is padded to
    tokens: int = 0  # tokens computed, of prompts and answers
    prompt_tokens: int = 0  # how many of them are prompt tokens
    # Tokens in the KV cache that are read: those up to the end of each request's part; on a CPU, those up to each token
    # of a short part, and none of a long one.
    kv_tokens: float = 0
    squares: float = 0  # sum over the parts of prompts, on a CPU over the long ones, of end² − start², in tokens
    eager: bool = False  # whether a CPU computes the step without replaying a recorded one

    @classmethod
    def of_step(cls, step: Step, *, cpu: bool = False) -> Self:
        """Returns a scheduled step's load, on a GPU padded as the step says."""
        load = cls()
        for entry in step.entries:
            if entry.num_tokens:
                load.add(entry.start, entry.num_tokens, prompt=entry.num_prompt_tokens > 0, cpu=cpu)
        if not cpu and step.cuda_graphs and not load.prompt_tokens:
            load.sequences = padded(load.sequences)
        return load

    def add(self, start: int, count: float, *, prompt: bool, cpu: bool, times: int = 1) -> None:
        """Add the next ``count`` tokens, after ``start``, of as many requests as ``times`` says."""
        end, one_by_one = start + count, cpu and count <= CPU_SHORT_PART
        self.sequences += times
        self.tokens += int(times * count)
        if prompt:
            self.prompt_tokens += int(times * count)
        if one_by_one:
            self.kv_tokens += times * count * (start + end + 1) / 2
        elif not cpu:
            self.kv_tokens += times * end
        if prompt and not one_by_one:
            self.squares += times * (end * end - start * start)
        self.eager |= cpu and (not one_by_one or self.tokens > CPU_REPLAYED_TOKENS)


def padded(sequences: int) -> int:
    """Returns the size to which a decode step of this many sequences is padded."""
    return next((size for size in GRAPH_SIZES if size >= sequences), sequences) if sequences else 0


class CostModel:
    """The duration of steps of one model on ``tensor_parallel`` GPUs of one kind.

    Args:
        parameters: by default ``Parameters.start``.

    Attributes:
        pads: whether decode steps are padded.

    Raises:
        SimulationError: the model cannot be divided among the GPUs, the link between them is not known, or one token takes
            longer than ten minutes.
    """

    def __init__(
        self, shape: ModelShape, gpu: GPU, tensor_parallel: int = 1, parameters: Parameters | None = None
    ) -> None:
        if tensor_parallel < 1 or shape.heads % tensor_parallel:
            raise SimulationError(
                f"{shape.name} has {shape.heads} attention heads, which cannot be divided among {tensor_parallel} GPUs"
            )
        if tensor_parallel > 1 and gpu.link_gb_s is None:
            raise SimulationError(f"the link between GPUs of the kind {gpu.title} is not known: simulate a single one")
        self.shape, self.gpu, self.tensor_parallel = shape, gpu, tensor_parallel
        self.parameters = parameters or Parameters.start(gpu, shape)
        self.pads = not gpu.cpu
        self._per_unit = self._costs_per_unit()
        self._base_s: dict[int, float] = {}  # by the number of tokens, which decides how many experts are read
        if not (took_s := self.seconds(self.prompt(1))) <= _LONGEST_S:
            raise SimulationError(
                f"one token of {shape.name} would take {took_s:,.0f} s on {gpu.title}: simulate faster hardware"
            )

    def scaled(self, factor: float) -> CostModel:
        """Returns one whose steps all take ``factor`` times as long."""
        parameters = self.parameters.with_vector(factor * self.parameters.as_vector())
        return CostModel(self.shape, self.gpu, self.tensor_parallel, parameters)

    def decode(self, sequences: int, context: float) -> StepLoad:
        """Returns the load of a step that decodes ``sequences`` requests with ``context`` tokens each."""
        return self.decodes(sequences, sequences * context)

    def decodes(self, sequences: int, kv_tokens: float, *, pads: bool = True) -> StepLoad:
        """Returns the load of a step that decodes requests with ``kv_tokens`` tokens in all; it may be an array ``[n]``."""
        eager = self.gpu.cpu and sequences > CPU_REPLAYED_TOKENS
        return StepLoad(padded(sequences) if pads and self.pads else sequences, sequences, 0, kv_tokens, 0, eager)

    def prompt(self, tokens: float, prompts: int = 1) -> StepLoad:
        """Returns the load of a step that computes whole prompts of ``tokens`` tokens."""
        load = StepLoad()
        load.add(0, tokens, prompt=True, cpu=self.gpu.cpu, times=prompts)
        return load

    def terms(self, load: StepLoad) -> np.ndarray:
        """Returns ``[8]`` float64: the factors of ``Parameters.as_vector``, whose products add up to the seconds."""
        shape, parts = self.shape, self.tensor_parallel
        bandwidth = self.gpu.bandwidth_tb_s * 1e12
        weights_s = shape.bytes_read(load.tokens) / parts / bandwidth
        kv_s = load.kv_tokens * shape.kv_bytes_per_token(parts) / bandwidth
        products, attention = (flops / (self.gpu.flops(shape.weights) * parts) for flops in self._operations(load))
        cpu = self.gpu.cpu
        return np.array(
            [
                weights_s + (0.0 if cpu else kv_s),
                shape.layers,
                shape.layers * load.sequences / parts,
                products + (0.0 if cpu else attention),
                load.tokens * self._exchanged_s_per_token(),
                kv_s if cpu else 0.0,
                attention if cpu else 0.0,
                float(load.eager),
            ]
        )

    def seconds(self, load: StepLoad) -> float:
        """Returns a step's duration; 0 for a step that computes nothing. ``kv_tokens`` may be an array ``[n]``."""
        if not load.tokens:
            return 0.0
        per_sequence, per_kv, per_prompt, per_square, per_token = self._per_unit
        # One order of additions for numbers and arrays, so that both round alike.
        seconds = self._base(load.tokens) + load.sequences * per_sequence + load.tokens * per_token
        seconds = seconds + load.prompt_tokens * per_prompt + load.squares * per_square
        if load.eager:
            seconds = seconds + self.parameters.cpu_eager_s
        return seconds + load.kv_tokens * per_kv

    def prompt_tokens_in(self, seconds: float, context: float) -> int:
        """Returns how many tokens of prompts, with ``context`` tokens before each, a step computes in this time."""
        _, _, per_prompt, per_square, per_token = self._per_unit
        left_s = seconds - self.seconds(StepLoad(1, 1, 1, 0 if self.gpu.cpu else context, 0, self.gpu.cpu))
        return max(0, int(left_s / (per_prompt + per_token + per_square * 2 * context)))

    def _operations(self, load: StepLoad) -> tuple[float, float]:
        """Operations of the matrix products and of the attention of a step's prompts.

        Attention counts the whole square of a prompt although half of it is masked: kernels reach about half the
        matrix rate there. Unloaded TTFT of 8,192 tokens then agrees with published points within 5%; with half the
        square it comes out 15% too short.
        """
        shape = self.shape
        attention = 2.0 * shape.layers * shape.heads * (shape.k_dim + shape.v_dim)
        return 2.0 * shape.active * load.prompt_tokens, attention * load.squares

    def _exchanged_s_per_token(self) -> float:
        """Seconds of the link per token: two all-reduces of the hidden state, in bf16, in each layer."""
        parts, shape = self.tensor_parallel, self.shape
        if parts == 1:
            return 0.0
        exchanged = 2.0 * shape.layers * shape.hidden * 2 * 2 * (parts - 1) / parts
        return exchanged / ((self.gpu.link_gb_s or 0.0) * 1e9)

    def _base(self, tokens: int) -> float:
        """Returns the seconds for reading the weights and for the host's work of a step of ``tokens`` tokens."""
        tokens = tokens if self.shape.experts else 1
        if tokens not in self._base_s:
            memory, layer_s, *_ = map(float, self.parameters.as_vector())
            read = self.shape.bytes_read(tokens) / self.tensor_parallel / (self.gpu.bandwidth_tb_s * 1e12)
            self._base_s[tokens] = memory * read + layer_s * self.shape.layers
        return self._base_s[tokens]

    def _costs_per_unit(self) -> tuple[float, ...]:
        """Returns the seconds per sequence, attended token, prompt token, square and token."""
        memory, _, sequence_s, compute, link, cpu_kv, cpu_attention, _ = map(float, self.parameters.as_vector())
        shape, parts = self.shape, self.tensor_parallel
        rate = self.gpu.flops(shape.weights) * parts
        products, attention = self._operations(StepLoad(prompt_tokens=1, squares=1))
        return (
            sequence_s * shape.layers / parts,
            (cpu_kv if self.gpu.cpu else memory) * shape.kv_bytes_per_token(parts) / (self.gpu.bandwidth_tb_s * 1e12),
            compute * products / rate,
            (cpu_attention if self.gpu.cpu else compute) * attention / rate,
            link * self._exchanged_s_per_token(),
        )
