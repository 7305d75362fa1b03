"""Masks of the tokens that answers with a grammar may go on with, computed in a thread while the model runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from roseplay.core.request import PLACEHOLDER
from roseplay.core.step import Step, StepEntry

# A token to be drawn: the index of its entry in the step, and after how many tokens of its draft it is drawn.
Row = tuple[int, int]
Late = Callable[[], Mapping[int, int]]


class StepMasks:
    """The masks of a step that is about to run.

    Args:
        thread: computes them.
        beside: whether the step goes on meanwhile.
        late: waits for the tokens that the previous step drew and returns them by request id; for placeholders.
        pin: whether the masks are for a GPU.

    Attributes:
        row_of: the row of each token to be drawn that has a mask, in the step's order.
        took_ns: time that computing them took, once they are there.
        waited_ns: time that the step waited for them.
    """

    def __init__(self, step: Step, thread: ThreadPoolExecutor, late: Late, *, beside: bool, pin: bool) -> None:
        entries = [(i, entry) for i, entry in enumerate(step.entries) if entry.request.matcher and entry.samples]
        rows = [(i, after) for i, entry in entries for after in range(1 + len(entry.draft))]
        self.row_of = {row: number for number, row in enumerate(rows)}
        self.took_ns = self.waited_ns = 0
        if entries:
            work = partial(_compute, [entry for _, entry in entries], late, pin)
            try:
                self._result = thread.submit(work).result
            except RuntimeError:  # while the program ends, threads take no more work
                self._result = work
            if not beside:
                self.forbidden()

    def forbidden(self) -> torch.Tensor:
        """Wait for the masks and return them: bool ``[rows, vocabulary or more]``, on the host."""
        begin = time.perf_counter_ns()
        forbidden, self.took_ns = self._result()
        self.waited_ns += time.perf_counter_ns() - begin
        return forbidden


def _compute(entries: list[StepEntry], late: Late, pin: bool) -> tuple[torch.Tensor, int]:
    """Returns the masks and the time that they took, in ns."""
    drawn = late() if any(entry.request.token_ids[-1] == PLACEHOLDER for entry in entries) else {}
    begin = time.perf_counter_ns()
    rows, words = sum(1 + len(entry.draft) for entry in entries), entries[0].request.matcher.words
    bits = np.zeros((rows, words), np.int32)
    start = 0
    for entry in entries:
        request, end = entry.request, start + 1 + len(entry.draft)
        try:
            request.matcher.follow(request, drawn.get(request.request_id, -1))
            request.matcher.fill(bits[start:end], entry.draft)
        except BaseException as error:  # a panic in an extension is not an Exception; it must end this request alone
            request.matcher.error = f"{type(error).__name__}: {error}"
            bits[start:end] = 0
        start = end
    forbidden = torch.empty((rows, words * 32), dtype=torch.bool, pin_memory=pin)
    forbidden.numpy()[...] = np.unpackbits(~bits.view(np.uint8), axis=1, bitorder="little")
    return forbidden, time.perf_counter_ns() - begin
