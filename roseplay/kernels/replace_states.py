"""Makes modules with a recurrent state call other functions than transformers', after comparing both.

The functions are found by their names in the modelling files of transformers, and have the arguments and results of those
of the libraries causal-conv1d, flash-linear-attention and mamba-ssm, except that states are ``SlotStates``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from roseplay.core.info import Choice
from roseplay.core.step import DeviceLostError, StepTooLargeError
from roseplay.kernels.replace_modules import random_like, same, with_globals
from roseplay.model.batch import HostBatch
from roseplay.model.device_errors import judge
from roseplay.model.stateful import StatefulForward, stateful_modules
from roseplay.model.states import StatePool

# Rows of a comparison: tokens to compute, and tokens before them.
_DECODES = ((1, 7), (1, 7), (1, 7))
_PACKED = ((3, 0), (1, 7), (37, 0), (34, 7))

logger = logging.getLogger(__name__)


def decode_by(model: PreTrainedModel, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Make modules compute the decodes of a step with these functions, where outputs and states stay the same."""
    _replace(model, functions, "in_place", _DECODES)


def prefill_by(model: PreTrainedModel, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Make modules compute all rows of a packed batch in one call, where outputs and states stay the same."""
    _replace(model, functions, "packed", _PACKED)


@torch.inference_mode()
def _replace(
    model: PreTrainedModel, functions: Mapping[str, Callable[..., Any]], attribute: str, rows: Sequence[tuple[int, int]]
) -> None:
    """Set an attribute of each ``StatefulForward`` to the module's forward with these functions, if both agree.

    One module is compared of those that have the same class and states. Whatever a kernel raises, such as an error of its
    compiler, leaves the module as it is (``StatefulForward.refused``); only a lost device or a lack of memory is raised.
    """
    dim, like = model.get_input_embeddings().embedding_dim, next(model.parameters())
    verdicts: dict[Hashable, str | None] = {}
    for module, stateful in stateful_modules(model):
        forward, kind = _with_functions(module, functions), (type(module), stateful.shapes)
        if forward is None:
            continue
        if kind not in verdicts:
            verdicts[kind] = _why_not(stateful, attribute, forward, _Trial(stateful, rows, dim, like))
        why = verdicts[kind]
        setattr(stateful, attribute, forward if why is None else None)
        if why is not None:
            stateful.refused[attribute] = why


def _why_not(
    stateful: StatefulForward, attribute: str, forward: Callable[..., torch.Tensor], trial: _Trial
) -> str | None:
    """Returns why a forward cannot be used; None if it computes the same as without it."""
    expected = trial.run()
    setattr(stateful, attribute, forward)
    try:
        return None if trial.agrees(expected, trial.run()) else "the kernels compute something else"
    except Exception as error:
        failure = judge(error, trial.device)
        if isinstance(failure, DeviceLostError | StepTooLargeError):
            raise failure from error
        message = getattr(error, "error_message", None) or error  # Triton's compiler quotes the source first
        why = Choice.brief(f"{type(error).__name__}: {message}")
        level = logging.INFO if isinstance(error, ValueError) else logging.WARNING  # arguments that have no kernel
        logger.log(level, "a layer with a state is computed by the model's code: %s", why)
        return why


class _Trial:
    """A module on random inputs and states, the same in every run."""

    def __init__(
        self, stateful: StatefulForward, rows: Sequence[tuple[int, int]], dim: int, like: torch.Tensor
    ) -> None:
        self._stateful, self._like, self.device = stateful, like, like.device
        counts, before = (np.array(numbers) for numbers in zip(*rows, strict=True))
        tokens, self._slots = int(counts.sum()), np.arange(len(rows), 0, -1)
        self._x = random_like((1, tokens, dim), like)
        zeros = np.zeros(tokens, np.int64)
        self._host = HostBatch(
            input_ids=zeros,
            positions=zeros,
            slot_mapping=zeros,
            cu_seqlens_q=np.concatenate([[0], counts.cumsum()]),
            seq_lens=counts + before,
            block_tables=np.zeros((len(rows), 1), np.int64),
            logits_rows=zeros[:1],
            state_slots=self._slots,
        )

    def run(self) -> list[torch.Tensor]:
        """Returns the outputs, and the states after them."""
        stateful, device = self._stateful, self.device
        pool = StatePool({stateful.layer: stateful.shapes}, len(self._slots) + 1, device)
        every = torch.arange(len(self._slots) + 1, device=device)
        shapes = [((len(every), *shape.shape), torch.empty(0, dtype=shape.dtype)) for shape in stateful.shapes]
        pool.write(stateful.layer, every, [random_like(size, like.to(device)) / 3 for size, like in shapes])
        return [stateful.compute(self._x, self._host.upload(device), pool), *pool.read(stateful.layer, every[1:])]

    def agrees(self, expected: list[torch.Tensor], found: list[torch.Tensor]) -> bool:
        # States are computed from numbers of the model's dtype, whatever their own, and sums in another order.
        dtype = self._like.dtype
        units = 64 if dtype == torch.float32 else 4
        return all(same(a.to(dtype), b.to(dtype), units=units) for a, b in zip(expected, found, strict=True))


def _with_functions(module: nn.Module, functions: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    """Returns the module's forward with these in place of its file's functions; None if it calls none of them."""
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType) or not functions.keys() & set(forward.__code__.co_names):
        return None
    return MethodType(with_globals(forward, dict(functions)), module)
