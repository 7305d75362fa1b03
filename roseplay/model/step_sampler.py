"""Draws a step's tokens: gathers the logits of each entry, saves logits, and draws in parts if memory is short."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TypeVar

import torch

from roseplay.core.memory_limit import MemoryLimit
from roseplay.core.step import Step, TokenLogprobs
from roseplay.model.batch import Drawn
from roseplay.model.device_errors import is_out_of_memory
from roseplay.model.drawing import Drawing, after_draft
from roseplay.model.masks import Row, StepMasks
from roseplay.model.sampler import NO_TOKEN, Logprobs, SamplingKernels, draw
from roseplay.model.upload import Download, to_device

Part = TypeVar("Part")


class Draws:
    """A step's drawn tokens, copied from the device asynchronously.

    Args:
        rows: what each token is drawn for.
        tokens: int64 ``[rows]``; ``NO_TOKEN`` where nothing can be drawn.
        logprobs: log-probabilities of consecutive parts of the rows.
    """

    def __init__(self, rows: list[Row], tokens: torch.Tensor, logprobs: list[Logprobs]) -> None:
        self._rows = rows
        self._tokens = Download(tokens)
        self._logprobs = logprobs

    def tokens(self) -> list[int]:
        """Wait for the device; returns the tokens alone."""
        tokens: list[int] = self._tokens.read()[0].tolist()
        return tokens

    def read(self) -> list[tuple[Row, int | None, TokenLogprobs | None]]:
        """Wait for the device; returns each row, its token or None, and its log-probabilities or None."""
        tokens = self.tokens()
        logprobs = [value for part in self._logprobs for value in part.read()]
        return [
            (row, None, None) if token == NO_TOKEN else (row, token, value)
            for row, token, value in zip(self._rows, tokens, logprobs, strict=True)
        ]


class StepSampler:
    """Draws a step's tokens, for fewer rows at once if memory is short.

    Args:
        release_memory: called before a retry with fewer rows.
        kernels: faster implementations of parts of ``sampler.draw``.
        mask_overlap: as in ``EngineConfig``.

    Attributes:
        saved_logits: saved logits by key, each float32 ``[vocabulary]``.
        drawn: the tokens that the last step drew, for the next step; None if it drew none.
    """

    def __init__(
        self, release_memory: Callable[[], None], kernels: SamplingKernels, *, mask_overlap: bool = True
    ) -> None:
        self._release_memory = release_memory
        self._kernels = kernels
        self._limit = MemoryLimit(None)
        self.saved_logits: dict[int, torch.Tensor] = {}
        self.drawn: Drawn | None = None
        self._draws: Draws | None = None
        self._mask_overlap = mask_overlap
        self._mask_thread = ThreadPoolExecutor(1, "roseplay-masks")  # starts when it is needed

    def masks(self, step: Step, *, pin: bool) -> StepMasks:
        """Start to compute the masks of a step; ``pin``: whether for a GPU."""
        draws, drawn = self._draws, self.drawn

        def late() -> dict[int, int]:
            if draws is None or drawn is None:
                return {}
            tokens = draws.tokens()
            return {request_id: tokens[row] for request_id, row in drawn.row_of.items()}

        return StepMasks(step, self._mask_thread, late, beside=self._mask_overlap, pin=pin)

    def wanted(self, step: Step) -> list[int]:
        """Returns the entries whose last logits are needed. Raises ``ValueError`` for an inconsistent step."""
        wanted: dict[int, None] = {}
        for i, entry in enumerate(step.entries):
            if entry.save_logits_key is not None:
                wanted[i] = None
            if not entry.samples:
                continue
            if (entry.logits_entry is None) == (entry.logits_key is None):
                raise ValueError(f"{entry.request} samples, from exactly one of an entry and saved logits")
            if entry.logits_entry is not None:
                wanted[entry.logits_entry] = None
            elif entry.logits_key not in self.saved_logits:
                raise ValueError(f"{entry.request} samples from saved logits {entry.logits_key}, which are not there")
        for i in wanted:
            if not 0 <= i < len(step.entries) or not step.entries[i].num_tokens:
                raise ValueError(f"logits are wanted of entry {i} of step {step.step_id}, which computes no token")
        return list(wanted)

    def sample(
        self,
        step: Step,
        wanted: list[int],
        logits: torch.Tensor,
        argmax: torch.Tensor | None = None,
        masks: StepMasks | None = None,
    ) -> Draws | None:
        """Save logits and draw tokens; returns None if the step draws none.

        Args:
            wanted: the entries of the rows of ``logits``, in order; an entry with a draft has a row for each of the
                draft's tokens as well.
            argmax: of each row of ``logits``, if known: see ``likeliest``.
            masks: see ``masks``; None if no answer follows a grammar.
        """
        counts = accumulate((1 + len(step.entries[i].draft) for i in wanted), initial=0)
        row_of = dict(zip(wanted, counts, strict=False))  # the entry's first row
        for i in wanted:
            key = step.entries[i].save_logits_key
            if key is not None:
                self.saved_logits[key] = logits[row_of[i]].to(torch.float32, copy=True)
        sampling = [
            (i, n) for i, entry in enumerate(step.entries) if entry.samples for n in range(len(entry.draft) + 1)
        ]
        if not sampling:
            self.drawn = self._draws = None
            return None

        def sample_part(part: list[Row]) -> tuple[torch.Tensor, Logprobs]:
            rows = self._gather_logits(step, part, row_of, logits)
            drawing = [after_draft(step.entries[i].request, step.entries[i].draft[:n]) for i, n in part]
            tokens = self._draw(rows, drawing, argmax if rows is logits else None, part, masks)
            return tokens, Logprobs(rows, drawing, tokens)

        parts, logprobs = zip(*self._in_parts(sampling, sample_part), strict=True)
        tokens = parts[0] if len(parts) == 1 else torch.cat(parts)
        self.drawn = Drawn(tokens, {step.entries[i].request.request_id: row for row, (i, _) in enumerate(sampling)})
        self._draws = Draws(sampling, tokens, list(logprobs))
        return self._draws

    def _draw(
        self,
        logits: torch.Tensor,
        drawing: list[Drawing],
        argmax: torch.Tensor | None,
        part: list[Row],
        masks: StepMasks | None,
    ) -> torch.Tensor:
        """Draw a token for each row: for all as if there were no masks, then again for those that have one."""
        masked = [n for n, row in enumerate(part) if row in masks.row_of] if masks is not None else []
        if len(masked) < len(part):
            tokens = draw(logits, drawing, self.drawn, kernels=self._kernels, argmax=argmax)
        if masks is None or not masked:
            return tokens
        rows, first = to_device(masked, torch.int64, logits.device), masks.row_of[part[masked[0]]]
        forbidden = masks.forbidden()[first : first + len(masked)].to(logits.device, non_blocking=True)
        allowed = logits.index_select(0, rows).float().masked_fill_(forbidden[:, : logits.shape[-1]], float("-inf"))
        drawn = draw(allowed, [drawing[n] for n in masked], self.drawn, kernels=self._kernels)
        return drawn if len(masked) == len(part) else tokens.index_copy_(0, rows, drawn)

    def _in_parts(self, rows: list[Row], run: Callable[[list[Row]], Part]) -> list[Part]:
        """Call ``run`` for all rows at once, or for as many as there is memory for; raises if one is too many."""
        while True:
            size = min(len(rows), self._limit.most or len(rows))
            try:
                parts = [run(rows[i : i + size]) for i in range(0, len(rows), size)]
            except Exception as error:
                if size == 1 or not is_out_of_memory(error):
                    raise
            else:
                self._limit.passed(size)
                return parts
            self._limit.failed(size)
            self._release_memory()  # here, where no frame of the failed call references its tensors

    def _gather_logits(
        self, step: Step, sampling: list[Row], row_of: dict[int, int], logits: torch.Tensor
    ) -> torch.Tensor:
        """Returns the logits that each of these rows is drawn from, ``[sampling, vocabulary]``."""
        saved: list[torch.Tensor] = []
        rows: list[int] = []
        for i, after in sampling:
            entry = step.entries[i]
            if entry.logits_entry is not None:
                rows.append(row_of[entry.logits_entry] + after)
            else:
                assert entry.logits_key is not None  # checked by ``wanted``
                rows.append(logits.shape[0] + len(saved))
                saved.append(self.saved_logits[entry.logits_key])
        if rows == list(range(logits.shape[0])):
            return logits
        if rows == list(range(rows[0], rows[0] + len(rows))) and not saved:
            return logits[rows[0] : rows[0] + len(rows)]
        source = torch.cat([logits.float(), torch.stack(saved)]) if saved else logits
        return source.index_select(0, to_device(rows, torch.int64, source.device))
