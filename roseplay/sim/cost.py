"""How long one step takes: a sum of five terms, each with one parameter.

In words: the host's work per layer, the bytes of weights and KV cache at a share of the memory's bandwidth, work per
sequence and layer, the prompts' operations at a share of the matrix rate, and the exchange between the GPUs of a tensor
parallel group at a share of the link's rate. A sum, and not the larger of reading and computing, fits the published
steps better, and is linear in ``Parameters.as_vector``, so that calibration is one least-squares call.
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


@dataclass(frozen=True, slots=True)
class Parameters:
    """The five parameters of a step's duration. They are fitted to points, and are no facts about the hardware.

    Attributes:
        memory_share: share of the memory's bandwidth at which weights and KV cache are read.
        layer_s: seconds per layer, whatever the step's size.
        sequence_s: seconds per layer and sequence.
        compute_share: share of the matrix rate at which prompts are computed.
        link_share: share of the link's bandwidth at which GPUs exchange activations.
        server_s: seconds of a server besides its steps before a request's first token; not part of a step.
    """

    memory_share: float = 0.90
    layer_s: float = 55e-6
    sequence_s: float = 0.42e-6
    compute_share: float = 0.67
    link_share: float = 0.43
    server_s: float = 8e-3

    @classmethod
    def default(cls, gpu: GPU, weights: str) -> Self:
        """Returns the defaults: fitted to steps of Qwen3-8B on one H100 and of Qwen3-32B on one to eight B300.

        Where weights are multiplied at the rate of fp8, a smaller share of it is reached: 0.40 to 0.45.
        """
        return cls() if gpu.flops(weights) == gpu.flops("bf16") else cls(compute_share=0.425)

    def as_vector(self) -> np.ndarray:
        """Returns ``[5]`` float64 coefficients in which a step's duration is linear."""
        return np.array(
            [1 / self.memory_share, self.layer_s, self.sequence_s, 1 / self.compute_share, 1 / self.link_share]
        )

    def with_vector(self, coefficients: np.ndarray) -> Self:
        """Returns the parameters with these five coefficients, all positive."""
        memory, layer_s, sequence_s, compute, link = map(float, coefficients)
        return replace(
            self,
            memory_share=1 / memory,
            layer_s=layer_s,
            sequence_s=sequence_s,
            compute_share=1 / compute,
            link_share=1 / link,
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
    def of_step(cls, step: Step) -> Self:
        """Returns a scheduled step's load, padded as the step says."""
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
        if step.cuda_graphs and not load.prompt_tokens:
            load.sequences = padded(load.sequences)
        return load

    @classmethod
    def decode(cls, sequences: int, context: float) -> Self:
        """Returns the load of a padded step that decodes ``sequences`` requests with ``context`` tokens each."""
        return cls(padded(sequences), sequences, 0, sequences * context, 0)

    @classmethod
    def prompt(cls, tokens: float) -> Self:
        """Returns the load of a step that computes one whole prompt."""
        return cls(1, int(tokens), int(tokens), tokens, tokens * tokens)


def padded(sequences: int) -> int:
    """Returns the size to which a decode step of this many sequences is padded."""
    return next((size for size in GRAPH_SIZES if size >= sequences), sequences) if sequences else 0


class CostModel:
    """The duration of steps of one model on ``tensor_parallel`` GPUs of one kind.

    Args:
        parameters: by default ``Parameters.default``.

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
        self.parameters = parameters or Parameters.default(gpu, shape.weights)
        self._per_unit = self._costs_per_unit()
        self._base_s: dict[int, float] = {}  # by the number of tokens, which decides how many experts are read

    def scaled(self, factor: float) -> CostModel:
        """Returns one whose steps all take ``factor`` times as long."""
        parameters = self.parameters.with_vector(factor * self.parameters.as_vector())
        return CostModel(self.shape, self.gpu, self.tensor_parallel, parameters)

    def terms(self, load: StepLoad) -> np.ndarray:
        """Returns ``[5]`` float64: the factors of ``Parameters.as_vector``, whose products add up to the seconds."""
        shape, parts = self.shape, self.tensor_parallel
        bandwidth = self.gpu.bandwidth_tb_s * 1e12
        read = shape.bytes_read(load.tokens) / parts + load.kv_tokens * shape.kv_bytes_per_token(parts)
        return np.array(
            [
                read / bandwidth,
                shape.layers,
                shape.layers * load.sequences / parts,
                self._operations(load) / (self.gpu.flops(shape.weights) * parts),
                load.tokens * self._exchanged_s_per_token(),
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
        return seconds + load.kv_tokens * per_kv

    def first_token_s(self, prompt_tokens: int) -> float:
        """Returns the seconds to the first token of a prompt on an idle server, computed in one step."""
        return self.seconds(StepLoad.prompt(prompt_tokens)) + self.parameters.server_s

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
        memory, _, sequence_s, compute, link = map(float, self.parameters.as_vector())
        shape, parts = self.shape, self.tensor_parallel
        rate = self.gpu.flops(shape.weights) * parts
        return (
            sequence_s * shape.layers / parts,
            memory * shape.kv_bytes_per_token(parts) / (self.gpu.bandwidth_tb_s * 1e12),
            compute * self._operations(StepLoad(prompt_tokens=1)) / rate,
            compute * self._operations(StepLoad(squares=1)) / rate,
            link * self._exchanged_s_per_token(),
        )
