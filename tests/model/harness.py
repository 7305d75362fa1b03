"""Steps made by hand, to test the model side without a scheduler."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.progress import Progress, Reporter
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry, StepResult
from roseplay.kernels import CPUAccelerator
from roseplay.kernels.cpu.products import Products
from roseplay.model.accelerator import accelerator_for, register_accelerator
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.loader import load_model
from roseplay.model.ranks import Ranks
from roseplay.model.runner import ModelRunner

BLOCK_SIZE = 4
# Settings of an engine without kernels, which would have to be compiled first.
PLAIN: dict[str, Any] = {"pack_weights": False, "fuse_ops": False, "record_steps": False, "attention": "gather"}


def make_runner(model: PreTrainedModel, *, num_blocks: int = 128, **settings: Any) -> ModelRunner:
    config = EngineConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, **settings)
    return ModelRunner(load_model(model, config), config)


@contextlib.contextmanager
def accelerator_with(**changes: Any) -> Iterator[None]:
    """Models that are loaded to a CPU inside this context have an accelerator with these static methods or attributes."""
    before = accelerator_for(torch.device("cpu"))
    attributes = {name: staticmethod(value) if callable(value) else value for name, value in changes.items()}
    register_accelerator("cpu", type("Changed", (before,), attributes))
    try:
        yield
    finally:
        register_accelerator("cpu", before)


@contextlib.contextmanager
def recording_options(**options: Any) -> Iterator[None]:
    """Models that are loaded inside this context record and replay steps with these ``RecordingOptions``."""
    before = accelerator_for(torch.device("cpu"))
    assert issubclass(before, CPUAccelerator)
    with accelerator_with(recording=dataclasses.replace(before.recording, **options)):
        yield


def refusal(
    model: str | Path | PreTrainedModel, free_bytes: int = 2**40, ranks: Ranks | None = None, **settings: Any
) -> str:
    """Why a model is not loaded with these settings and so much memory, in one line."""
    given = str(model) if isinstance(model, Path) else model
    config = EngineConfig(device="cpu", **settings)
    with pytest.raises(UnsupportedModelError) as error:
        load_model(given, config, ranks=ranks, free_bytes=lambda: free_bytes)
    assert "\n" not in str(error.value)
    return str(error.value)


def saved(model: PreTrainedModel, directory: Path) -> Path:
    """Save a checkpoint; returns its directory."""
    model.save_pretrained(directory)
    return directory


def products_of(products: Products) -> contextlib.AbstractContextManager[None]:
    """Linear layers of models that are loaded inside this context are multiplied in this way."""
    return accelerator_with(choose_products=lambda dtype, sizes, kind: products)


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Inside this context, torch computes with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reporter_of_all(sent: list[Progress]) -> Reporter:
    """Returns a reporter that sends every count: on its clock, a second passes between any two of them."""
    return Reporter(sent.append, itertools.count().__next__)


def random_tokens(length: int, vocabulary: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, (length,), generator=generator).tolist()


def eager_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """``[tokens, vocabulary]``"""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


class Operations(TorchDispatchMode):
    """Records the name of each torch operation and the largest number of elements in its results."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        size = max((x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor)), default=0)
        self.largest[name] = max(size, self.largest.get(name, 0))
        return out


class Blocks:
    """Hands out shuffled block ids, never block 0."""

    def __init__(self, num_blocks: int, seed: int = 0) -> None:
        order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(seed)) + 1
        self.free = order.tolist()

    def give(self, request: Request, num_tokens: int) -> None:
        while len(request.block_table) * BLOCK_SIZE < num_tokens:
            request.block_table.append(self.free.pop())


class Driver:
    """Runs requests whose tokens are all known, and keeps the logits of the last tokens of each step."""

    def __init__(self, runner: ModelRunner, prompts: list[list[int]], *, samples: bool = False, **knobs: bool) -> None:
        self.runner, self.samples, self.knobs = runner, samples, knobs  # options of each ``Step``
        self.blocks = Blocks(runner.num_blocks)
        self.requests = [Request(i, tokens, SamplingParams()) for i, tokens in enumerate(prompts)]
        for slot, request in enumerate(self.requests, 1):
            request.state_slot = slot
        self.computed = [0] * len(prompts)
        self.steps = 0

    def step(self, counts: dict[int, int]) -> dict[int, torch.Tensor]:
        """Compute the next ``counts[i]`` tokens of request i; returns the raw logits of each one's last token."""
        entries = []
        for i, count in counts.items():
            request = self.requests[i]
            self.blocks.give(request, self.computed[i] + count)
            row = len(entries) if self.samples else None
            part = StepEntry(
                request, self.computed[i], count, samples=self.samples, logits_entry=row, save_logits_key=i
            )
            entries.append(part)
            self.computed[i] += count
        step = Step(self.steps, entries, **self.knobs)
        self.steps += 1
        self.result = self.runner.execute(step)
        return {i: self.runner._sampler.saved_logits[i] for i in counts}


def check_logits(runner: ModelRunner, model: PreTrainedModel, tokens: list[int], *chunks: int) -> None:
    """Logits of the last token, computed after chunks of these sizes, are those of eager attention."""
    driver = Driver(runner, [tokens])
    for count in chunks:
        driver.step({0: count})
    logits = driver.step({0: len(tokens) - sum(chunks)})[0]
    assert (logits - eager_logits(model, tokens)[-1]).abs().max() < 1e-4


def every_state(runner: ModelRunner, slots: list[int]) -> list[torch.Tensor]:
    """The recurrent states in these slots, of all layers."""
    assert runner.states is not None
    return [state for layer in runner.states.shapes for state in runner.states.read(layer, torch.tensor(slots))]


def step_of(runner: ModelRunner, *entries: StepEntry, **fields: Any) -> StepResult:
    return runner.execute(Step(0, list(entries), **fields))


# -- steps that are replayed, beside steps that are not


def step_both(replaying: Driver, plain: Driver, counts: dict[int, int], tolerance: float = 1e-4) -> bool | None:
    """Make a step with both drivers, compare their logits, and return whether it was replayed."""
    found, expected = replaying.step(counts), plain.step(counts)
    for i in counts:
        torch.testing.assert_close(found[i], expected[i], rtol=tolerance, atol=tolerance)
    return replaying.result.replayed


def step_as_requests_join_and_leave(
    replaying: Driver, plain: Driver, together: int, tolerance: float
) -> list[bool | None]:
    """Make steps of five requests with recurrent states, in other slots each time, and compare logits and states.

    Returns which steps were replayed. A waiting request keeps its states, as padding writes to none.

    Args:
        together: steps of all requests at the beginning.
    """
    everyone, replayed = range(5), []
    for running in [everyone] * together + [[4, 0, 2], [1], [3, 1, 0, 2], everyone]:
        counts = {i: 1 if replaying.computed[i] else 2 + i for i in running}
        replayed.append(step_both(replaying, plain, counts, tolerance))
    slots = [1, 2, 3, 4, 5]
    for states in zip(every_state(replaying.runner, slots), every_state(plain.runner, slots), strict=True):
        torch.testing.assert_close(*states, rtol=tolerance, atol=tolerance)
    return replayed


def check_only_decodes_are_replayed(driver: Driver) -> None:
    replayed = []
    for counts in [{0: 1}, {0: 1}, {0: 2}, {0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1, 1: 2}, {0: 1, 2: 4}]:
        driver.step(counts)
        replayed.append(driver.result.replayed)
    assert replayed == [False, True, False, False, True, False, False]  # a first token is not a decode
