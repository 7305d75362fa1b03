"""Blocks of preempted requests in host memory: copied there when a request loses its blocks, and back when it resumes.

Only which block is copied where is decided here; the step carries the pairs, and the model runner copies. A step copies
blocks out before blocks in, and both before anything else, so that a block may be reused by the step that empties it.
This is the swapping of vLLM's first scheduler (Kwon et al., 2023), for each request by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from roseplay.core.block_tables import BlockTables
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry


@dataclass(frozen=True, slots=True)
class Swapped:
    """A waiting request's blocks in host memory."""

    blocks: list[int]  # host blocks, in the order of its block table
    num_tokens: int  # number of tokens whose keys and values they hold
    step_id: int  # the step that copies them there
    sources: frozenset[int]  # the blocks from which they were copied


class HostBlocks:
    """The blocks in host memory and the requests that they belong to.

    Args:
        num_blocks: number of host blocks, numbered from 0; 0 if there are none.
    """

    def __init__(self, tables: BlockTables, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._tables = tables
        self._freed: list[int] = []
        self._num_touched = 0  # blocks from this number on were never used
        self.swapped: dict[int, Swapped] = {}  # by request id

    @property
    def num_free(self) -> int:
        return self.num_blocks - self._num_touched + len(self._freed)

    def tokens_of(self, request: Request) -> int:
        """Returns the number of the request's tokens that are in host memory."""
        swapped = self.swapped.get(request.request_id)
        return 0 if swapped is None else swapped.num_tokens

    def swap_out(self, request: Request, step: Step) -> bool:
        """Have what the request has computed copied to host memory.

        Returns False if too few blocks are free there, or if what a failed request computed would be kept.
        """
        count = self._tables.blocks_for(request.num_computed_tokens)
        sources = request.block_table[:count]
        if not 0 < count <= self.num_free or self._tables.are_suspect(sources):
            return False
        blocks = [self._take() for _ in range(count)]
        swapped = Swapped(blocks, request.num_computed_tokens, step.step_id, frozenset(sources))
        self.swapped[request.request_id] = swapped
        step.swapped_out += zip(sources, blocks, strict=True)
        return True

    def _take(self) -> int:
        if self._freed:
            return self._freed.pop()
        self._num_touched += 1
        return self._num_touched - 1

    def swap_in(self, request: Request, step: Step) -> None:
        """Have the part of an admitted request that it has not found in the cache copied back, if it is in host memory.

        The request gets a step entry without tokens, unless it gets one that computes: if the step fails, it starts again.
        """
        swapped, tables = self.drop(request), self._tables
        if swapped is None or swapped.num_tokens <= request.num_computed_tokens:
            return
        first = len(request.block_table)
        if not tables.grow(request, swapped.num_tokens):
            return
        step.swapped_in += zip(swapped.blocks[first:], request.block_table[first:], strict=True)
        request.num_computed_tokens = swapped.num_tokens
        tables.publish_blocks(request, step.step_id, keep=True)
        if step.entries and step.entries[-1].request is request:
            step.entries.pop()
        step.entries.append(StepEntry(request, request.num_computed_tokens, 0))

    def drop(self, request: Request) -> Swapped | None:
        """Free the request's host blocks; returns what they held."""
        if (swapped := self.swapped.pop(request.request_id, None)) is not None:
            self._freed += reversed(swapped.blocks)
        return swapped

    def forget(self, steps: Iterable[Step]) -> None:
        """Drop what failed steps were to copy to host memory; these requests are computed again."""
        failed = {step.step_id for step in steps}
        self._drop_if(lambda swapped: swapped.step_id in failed)

    def forget_copies(self, blocks: Iterable[int]) -> None:
        """Drop copies of blocks that a failed request has computed, or that had these numbers before."""
        failed = set(blocks)
        self._drop_if(lambda swapped: not swapped.sources.isdisjoint(failed))

    def _drop_if(self, condition: Callable[[Swapped], bool]) -> None:
        for request_id in [number for number, swapped in self.swapped.items() if condition(swapped)]:
            self._freed += self.swapped.pop(request_id).blocks
