"""How long one step takes: a sum of terms, each with one parameter; five on GPUs, and two more on a CPU.

In words: the host's work per layer, the bytes of weights and KV cache at a share of the memory's bandwidth, work per
sequence and layer, the prompts' operations at a share of the matrix rate, and the exchange between the GPUs of a tensor
parallel group at a share of the link's rate. A sum, and not the larger of reading and computing, fits the published
steps better, and is linear in ``Parameters.as_vector``, so that calibration is one least-squares call. On a CPU, attention is
bound by arithmetic rather than by the memory, so that the KV cache has a term of its own, and so has the host's work of a step with
prompts, which is not replayed like that of a decode step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from roseplay.core.step import Step
from roseplay.sim.gpus import GPU, SimulationError
from roseplay.sim.model_shape import ModelShape

# Sizes, in sequences, to which a decode step is padded where it is replayed as a CUDA graph; larger steps are not padded.
GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
# The host's work per layer of a step on a CPU, from which a fit starts.
_CPU_LAYER_S = 150e-6


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a step's duration. They are fitted to points, and are no facts about the hardware.

    Attributes:
        memory_share: share of the memory's bandwidth at which weights and KV cache are read.
        layer_s: seconds per layer, whatever the step's size.
        sequence_s: seconds per layer and sequence.
        compute_share: share of the matrix rate at which prompts are computed.
        link_share: share of the link's bandwidth at which GPUs exchange activations.
        cpu_kv_share: share of the memory's bandwidth at which a CPU reads the KV cache; no part of a GPU's steps.
        cpu_prompt_s: seconds that any prompt adds to a CPU's step, whatever its length; no part of a GPU's steps.
        server_s: seconds of a server besides its steps before a request's first token; not part of a step.
    """

    memory_share: float = 0.90
    layer_s: float = 55e-6
    sequence_s: float = 0.42e-6
    compute_share: float = 0.67
    link_share: float = 0.43
    cpu_kv_share: float = 0.3
    cpu_prompt_s: float = 2e-3
    server_s: float = 8e-3

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
        found = cls.default(gpu, shape.weights)
        if not gpu.cpu:
            return found
        row_s = 2.0 * (shape.active + shape.output) / (found.compute_share * gpu.flops(shape.weights))
        return replace(found, layer_s=_CPU_LAYER_S, sequence_s=row_s / shape.layers)

    def as_vector(self) -> np.ndarray:
        """Returns ``[7]`` float64 coefficients in which a step's duration is linear."""
        shares = (self.compute_share, self.link_share, self.cpu_kv_share)
        rates = (1 / share for share in shares)
        return np.array([1 / self.memory_share, self.layer_s, self.sequence_s, *rates, self.cpu_prompt_s])

    def with_vector(self, coefficients: np.ndarray) -> Self:
        """Returns the parameters with these coefficients, all positive."""
        memory, layer_s, sequence_s, compute, link, cpu_kv, cpu_prompt_s = map(float, coefficients)
        return replace(
            self,
            memory_share=1 / memory,
            layer_s=layer_s,
            sequence_s=sequence_s,
            compute_share=1 / compute,
            link_share=1 / link,
            cpu_kv_share=1 / cpu_kv,
            cpu_prompt_s=cpu_prompt_s,
        )


@dataclass(slots=True)
class StepLoad:
    """What a step computes, in the quantities that its duration depends on.

    Attributes:
        sequences: requests that compute a token; of a padded step, as many as it is padded to.
        tokens: tokens computed, of prompts and answers.
        prompt_tokens: how many of them are prompt tokens.
        kv_tokens: tokens in the KV cache that are read: those up to the end of each request's part.
        squares: sum over the parts of prompts of end² − start², in tokens.
    """

    sequences: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    kv_tokens: float = 0
    squares: float = 0

    @classmethod
    def of_step(cls, step: Step, *, pads: bool = True) -> Self:
        """Returns a scheduled step's load, padded as the step says if the hardware pads at all."""
        load = cls()
        for entry in step.entries:
            count = entry.num_tokens
            if count:
                end = entry.start + count
                load.sequences += 1
                load.tokens += count
                load.kv_tokens += end
                if entry.num_prompt_tokens:
                    load.prompt_tokens += count
                    load.squares += end * end - entry.start * entry.start
        if pads and step.cuda_graphs and not load.prompt_tokens:
            load.sequences = padded(load.sequences)
        return load

    @classmethod
    def prompt(cls, tokens: float, prompts: int = 1) -> Self:
        """Returns the load of a step that computes whole prompts of ``tokens`` tokens."""
        total = prompts * tokens
        return cls(prompts, int(total), int(total), total, total * tokens)


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
        SimulationError: the model cannot be divided among the GPUs, or the link between them is not known.
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

    def scaled(self, factor: float) -> CostModel:
        """Returns one whose steps all take ``factor`` times as long."""
        parameters = self.parameters.with_vector(factor * self.parameters.as_vector())
        return CostModel(self.shape, self.gpu, self.tensor_parallel, parameters)

    def decode(self, sequences: int, context: float) -> StepLoad:
        """Returns the load of a step that decodes ``sequences`` requests with ``context`` tokens each."""
        return StepLoad(padded(sequences) if self.pads else sequences, sequences, 0, sequences * context, 0)

    def terms(self, load: StepLoad) -> np.ndarray:
        """Returns ``[7]`` float64: the factors of ``Parameters.as_vector``, whose products add up to the seconds."""
        shape, parts = self.shape, self.tensor_parallel
        bandwidth = self.gpu.bandwidth_tb_s * 1e12
        weights_s = shape.bytes_read(load.tokens) / parts / bandwidth
        kv_s = load.kv_tokens * shape.kv_bytes_per_token(parts) / bandwidth
        return np.array(
            [
                weights_s + (0.0 if self.gpu.cpu else kv_s),
                shape.layers,
                shape.layers * load.sequences / parts,
                self._operations(load) / (self.gpu.flops(shape.weights) * parts),
                load.tokens * self._exchanged_s_per_token(),
                kv_s if self.gpu.cpu else 0.0,
                1.0 if self.gpu.cpu and load.prompt_tokens else 0.0,
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
        if self.gpu.cpu and load.prompt_tokens:
            seconds += self.parameters.cpu_prompt_s
        return seconds + load.kv_tokens * per_kv

    def first_token_s(self, prompt_tokens: int) -> float:
        """Returns the seconds to the first token of a prompt on an idle server, computed in one step."""
        return self.seconds(StepLoad.prompt(prompt_tokens)) + self.parameters.server_s

    def prompt_tokens_in(self, seconds: float, context: float) -> int:
        """Returns how many tokens of prompts, with ``context`` tokens before each, a step computes in this time."""
        _, _, per_prompt, per_square, per_token = self._per_unit
        left_s = seconds - self.seconds(StepLoad(1, 1, 1, context, 0))
        return max(0, int(left_s / (per_prompt + per_token + per_square * 2 * context)))

    def _operations(self, load: StepLoad) -> float:
        """Operations of a step's prompts.

        Attention counts the whole square of a prompt although half of it is masked: kernels reach about half the
        matrix rate there. Unloaded TTFT of 8,192 tokens then agrees with published points within 5%; with half the
        square it comes out 15% too short.
        """
        shape = self.shape
        attention = 2.0 * shape.layers * shape.heads * (shape.k_dim + shape.v_dim)
        return 2.0 * shape.active * load.prompt_tokens + attention * load.squares

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
        memory, _, sequence_s, compute, link, cpu_kv, _ = map(float, self.parameters.as_vector())
        shape, parts = self.shape, self.tensor_parallel
        rate = self.gpu.flops(shape.weights) * parts
        return (
            sequence_s * shape.layers / parts,
            (cpu_kv if self.gpu.cpu else memory) * shape.kv_bytes_per_token(parts) / (self.gpu.bandwidth_tb_s * 1e12),
            compute * self._operations(StepLoad(prompt_tokens=1)) / rate,
            compute * self._operations(StepLoad(squares=1)) / rate,
            link * self._exchanged_s_per_token(),
        )
