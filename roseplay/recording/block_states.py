"""The state of every KV block, as in frames and snapshots: in rows that may each describe several adjacent blocks.

A row is ``[block, references, owner, findable]``, where ``findable`` is 2 for a pinned block, optionally with a fifth
column, ``count``: the number of blocks from this one on that are in the same state. An owner of -1 is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

State = tuple[int, int, int]  # references, owner, findable
FREE: State = (0, -1, 0)
_NO_OWNER = np.array([[0], [1], [0]])  # added to a state before it is stored, so that zeroed memory means free


class BlockStates:
    """The newest state of each block; takes memory for blocks up to the highest number used so far.

    Attributes:
        used: blocks above this number were never allocated. Pools allocate unused blocks in the order of their numbers.
    """

    def __init__(self) -> None:
        self._states = np.zeros((3, 0), dtype=np.int64)  # by block, the three of a state
        self.used = 0

    def change(self, newest: Mapping[int, State]) -> list[list[int]]:
        """Apply new states by block. Returns the rows of blocks that changed or are used for the first time."""
        changed = sorted(block for block, state in newest.items() if block > self.used or state != self._state(block))
        if not changed:
            return []
        self._reserve(changed[-1])
        self._states[:, changed] = np.array([newest[block] for block in changed]).T + _NO_OWNER
        return self._rows(np.array(changed))

    def freed(self) -> dict[int, State]:
        """Returns the new states by block when the pool is reset: every block that is not free becomes free."""
        return dict.fromkeys(self._held().tolist(), FREE)

    def take(self, rows: Iterable[Sequence[int]]) -> None:
        """Apply the rows of a frame or a snapshot."""
        for block, references, owner, findable, *more in rows:
            end = block + (more[0] if more else 1)
            self._reserve(end - 1)
            self._states[:, block:end] = [[references], [owner + 1], [findable]]

    def rows(self) -> list[list[int]]:
        """Returns the rows of blocks that are not free."""
        return self._rows(self._held())

    def _held(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self._states.any(axis=0))

    def _rows(self, blocks: npt.NDArray[np.int64]) -> list[list[int]]:
        """Returns the rows of these blocks, in ascending order, with one row for neighbours in the same state."""
        states = self._states[:, blocks]
        begins = np.ones(len(blocks), dtype=bool)
        begins[1:] = (np.diff(blocks) != 1) | (states[:, 1:] != states[:, :-1]).any(axis=0)
        first = np.flatnonzero(begins)
        counts = np.diff(first, append=len(blocks))
        rows = np.vstack((blocks[first], states[:, first] - _NO_OWNER, counts)).T.tolist()
        return [row if row[-1] > 1 else row[:-1] for row in rows]

    def _state(self, block: int) -> State:
        references, owner, findable = self._states[:, block].tolist()
        return references, owner - 1, findable

    def _reserve(self, block: int) -> None:
        """Make room for blocks up to this number and mark them as used."""
        self.used = max(self.used, block)
        room = self._states.shape[1]
        if block >= room:
            states = np.zeros((3, max(block + 1, 2 * room)), dtype=np.int64)
            states[:, :room] = self._states
            self._states = states
