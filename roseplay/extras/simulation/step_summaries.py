"""What each simulated step computed, and the state after it, as columns of numbers: 56 bytes a step."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class StepSummary(NamedTuple):
    """One step that computed something; the fields are those of ``engine.records.StepRecord``."""

    start_ns: int
    end_ns: int
    prompt_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    blocks: int  # blocks that requests hold after it


class StepSummaries:
    """The steps in order. With overlap, the state after a step is known only when the next one has been scheduled."""

    def __init__(self) -> None:
        self._columns = [array("q") for _ in StepSummary._fields]
        self._work, self._state = self._columns[:4], self._columns[4:]

    @property
    def lacks_state(self) -> bool:
        """Whether the state after the last step is still to be given."""
        return len(self._columns[-1]) < len(self._columns[0])

    def add(self, start_ns: int, end_ns: int, prompt_tokens: int, decode_tokens: int) -> None:
        for column, value in zip(self._work, (start_ns, end_ns, prompt_tokens, decode_tokens), strict=True):
            column.append(value)

    def add_state(self, running: int, waiting: int, blocks: int) -> None:
        """Give the state after the last step, unless it was given already."""
        if self.lacks_state:
            for column, value in zip(self._state, (running, waiting, blocks), strict=True):
                column.append(value)

    def add_run(
        self, start_ns: int, ends_ns: np.ndarray, lasts: np.ndarray, waiting: int, blocks: np.ndarray, *, ahead: bool
    ) -> None:
        """Add steps that only decode, one directly after the other.

        Args:
            start_ns: when the first began.
            ends_ns: ``[steps]`` int64.
            lasts: ``[requests]``, in which of the steps, counted from 1, each answer would end.
            waiting: requests that wait all the while.
            blocks: ``[steps]`` int64, blocks held once each step has been scheduled and, with overlap, the one before it
                has ended; otherwise once it has ended itself.
            ahead: whether the steps overlap. The first of ``blocks`` is then the state after the step before the run,
                and that after the last step is still to be given.
        """
        assert ahead == self.lacks_state
        index, count, lasts = np.arange(len(ends_ns)), len(lasts), np.sort(lasts)
        decodes = count - np.searchsorted(lasts, index, side="right")
        running = decodes if ahead else count - np.searchsorted(lasts, index + 1, side="right")
        starts_ns = np.concatenate([[start_ns], ends_ns[:-1]])
        for column, values in zip(self._work, (starts_ns, ends_ns, 0 * ends_ns, decodes), strict=True):
            column.frombytes(values.astype(np.int64).tobytes())
        for column, values in zip(self._state, (running, np.full_like(running, waiting), blocks), strict=True):
            column.frombytes(values.astype(np.int64).tobytes())

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[StepSummary]:
        return map(StepSummary, *self._columns)
