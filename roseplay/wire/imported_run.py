"""A recording made from another engine's steps and KV events, for the page to replay.

They contain no requests, tokens, owners or references. Other figures that a recording requires are zero: cached and
shared tokens, copies and host time. Knobs have their defaults.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import roseplay
from roseplay.config import Knobs
from roseplay.core.info import EngineInfo
from roseplay.engine.records import COLUMNS, StepRow
from roseplay.formats.json_schema import FAR
from roseplay.formats.json_text import encode
from roseplay.recording.schema import FORMAT, MARK, MAX_BLOCKS
from roseplay.wire.block_numbers import BlockNumbers
from roseplay.wire.forward_pass import ForwardPassMetrics
from roseplay.wire.kv_events import KvEventBatch
from roseplay.wire.problems import Problems
from roseplay.wire.trace_file import MOST_BYTES

FRAME_MS = 100.0
MOST_LATE_MS = 250.0  # the most by which a step may be drawn later than it was reported
LATEST_MS = FAR / 2  # of the run; recordings hold no later times
TOO_LATE = "messages with a time years after that of the first"
DEFAULT_BLOCK_SIZE = 16
NOT_SHOWN = (
    "requests, tokens and their times; who holds a block, and how often; cached tokens of a step, its host time and what "
    "limited it; the engine's settings"
)


@dataclass(frozen=True)
class Limits:
    """Limits on the size of a run.

    Attributes:
        rows: the most rows (steps, changes of blocks, and frames) kept in memory, of about 0.5 kB each.
        blocks: upper limit of block numbers, exclusive.
        file_bytes: the most bytes read from each file, after decompression.
    """

    rows: int = 300_000
    blocks: int = MAX_BLOCKS
    file_bytes: int = MOST_BYTES


@dataclass
class _Frame:
    """The events of a tenth of a second."""

    begins: float
    t: float
    steps: list[StepRow] = field(default_factory=list)
    blocks: dict[int, list[int]] = field(default_factory=dict)
    stats: dict[str, int] | None = None


class ImportedRun:
    """Collects a run in memory, from the first worker and rank that report.

    Args:
        name: the engine's name; by default its worker's.
        source: where the data comes from, for the header.

    Attributes:
        began: when the run began.
        steps: how many there are.
        blocks: the blocks that are cached now, and the most that were.
    """

    def __init__(
        self,
        problems: Problems,
        source: str,
        name: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.problems = problems
        self.began = datetime.datetime.now(datetime.UTC)
        self._limits = limits or Limits()
        self._source = source
        self._name = name
        self._frames: list[_Frame] = []
        self.blocks = BlockNumbers(problems, self._limits.blocks)
        self._worker: tuple[str, int] | None = None
        self._kv_rank: int | None = None
        self._heard_kv = False
        self._step_end = float("-inf")
        self.steps = 0
        self._rows = 0
        self._scopes: set[str] = set()

    @property
    def seconds(self) -> float:
        return (self._frames[-1].t - self._frames[0].t) / 1000 if self._frames else 0.0

    @property
    def is_full(self) -> bool:
        """Whether the limit of rows has been reached, so that nothing more is taken."""
        return self._rows >= self._limits.rows

    # -- incoming messages

    def take_metrics(self, t: float, metrics: ForwardPassMetrics) -> None:
        """Take a step, or a heartbeat, that was reported at ``t``, in ms of the run."""
        if not self._takes(t):
            return
        worker = metrics.worker_id, metrics.dp_rank
        self._worker = self._worker or worker
        if worker != self._worker:
            self.problems.skip(f"forward pass metrics of worker {worker[0][:40]!r}, rank {worker[1]}")
            return
        scheduled, queued = metrics.scheduled_requests, metrics.queued_requests
        running = scheduled.num_prefill_requests + scheduled.num_decode_requests
        waiting = queued.num_prefill_requests + queued.num_decode_requests
        if not metrics.is_heartbeat:
            t = self._add_step(t, metrics, running, waiting)
        stats = {"running": running, "waiting": waiting, "step": max(0, self.steps - 1)}
        newest = next((frame.stats for frame in reversed(self._frames) if frame.stats), None)
        if stats != newest:
            self._frame(t).stats = stats

    def _takes(self, t: float) -> bool:
        """Returns whether a message from time ``t`` can be taken; counts those that cannot."""
        if t > LATEST_MS:
            self.problems.skip(TOO_LATE)
        elif self.is_full:
            self.problems.skip(f"messages after the first {self._limits.rows:,} steps, changes of blocks and frames")
        else:
            return True
        return False

    def _add_step(self, t: float, metrics: ForwardPassMetrics, running: int, waiting: int) -> float:
        """Add a step and return its end. Steps must not overlap: of several reports that arrive together, all but the
        first are placed later than they were, or shortened if that would be by more than ``MOST_LATE_MS``."""
        wall = 1000 * metrics.wall_time
        end = max(t, self._step_end + wall)
        if end > t + MOST_LATE_MS:
            end = max(t, self._step_end)
        start = max(end - wall, self._step_end)
        self._scopes.add(metrics.timing_scope)
        step = StepRow(
            step_id=self.steps,
            t0=round(start, 2),
            t1=round(end, 2),
            device_ms=round(wall, 2),
            prompt_tokens=metrics.scheduled_requests.sum_prefill_tokens,
            decode_tokens=metrics.scheduled_requests.num_decode_requests,
            running=running,
            waiting=waiting,
            blocks_cached=self.blocks.cached,
        )
        self._frame(end).steps.append(step)
        self.steps += 1
        self._rows += 1
        self._step_end = end
        return end

    def take_kv_events(self, t: float, batch: KvEventBatch) -> None:
        """Take a batch that arrived at ``t``, in ms of the run."""
        if not self._takes(t):
            return
        if not self._heard_kv:
            self._heard_kv, self._kv_rank = True, batch.data_parallel_rank
        if batch.data_parallel_rank != self._kv_rank:
            self.problems.skip(f"KV events of rank {batch.data_parallel_rank}", len(batch.events))
            return
        changes = (change for event in batch.events for change in self.blocks.take(event))
        self._change(t, list(islice(changes, self._limits.rows - self._rows)))

    def clear_blocks(self, t: float) -> None:
        """Remove all blocks: the publisher has restarted, so it is unknown which ones are cached."""
        self._change(t, list(self.blocks.clear()))

    def _change(self, t: float, changes: list[Any]) -> None:
        if changes:
            self._frame(t).blocks.update({change.block: list(change) for change in changes})
            self._rows += len(changes)

    def _frame(self, t: float) -> _Frame:
        """Returns the frame for events at ``t``."""
        last = self._frames[-1] if self._frames else None
        if last is None or t >= last.begins + FRAME_MS:
            last = _Frame(t, t)
            self._rows += 1
            self._frames.append(last)
        last.t = max(last.t, t)
        return last

    # -- the recording

    def lines(self) -> Iterator[bytes]:
        """Yields the recording's lines."""
        yield encode(self._header()) + b"\n"
        for number, frame in enumerate(self._frames, 1):
            yield encode(self._encoded(number, frame)) + b"\n"

    def _encoded(self, number: int, frame: _Frame) -> dict[str, Any]:
        total = self.blocks.highest
        steps = [replace(step, blocks_free=total - step.blocks_cached).values() for step in frame.steps]
        nothing: dict[str, Any] = {"tokens": [], "requests": [], "knobs": []}
        what = {"steps": steps, **nothing, "blocks": list(frame.blocks.values()), "stats": frame.stats}
        return {"seq": number, "t": round(frame.t, 2), **what, "burst": None}

    def _header(self) -> dict[str, Any]:
        return {
            MARK: FORMAT,
            "version": roseplay.__version__,
            "created": self.began.isoformat(timespec="milliseconds"),
            "words": "none",
            "info": dataclasses.asdict(self._info()),
            "environment": self._environment(),
            "columns": COLUMNS,
            "knobs": Knobs().to_dict(),
            "snapshot": {"t": 0.0, "requests": [], "blocks": []},
        }

    def _info(self) -> EngineInfo:
        """Returns the engine's facts; unknown ones are "unknown" or 0."""
        name = self._name or (self._worker and self._worker[0]) or "another engine"
        texts = dict.fromkeys(("architecture", "device", "dtype", "attention"), "unknown")
        counts = ("num_parameters", "weight_bytes", "vocab_size", "max_model_len", "kv_bytes_per_token", "threads")
        size = self.blocks.block_size or DEFAULT_BLOCK_SIZE
        sizes = {"block_size": size, "num_blocks": self.blocks.highest + 1}
        return EngineInfo.of({"model": name[:200], **texts, **dict.fromkeys(counts, 0), **sizes})

    def _environment(self) -> dict[str, Any]:
        scopes = ", ".join(sorted(scope[:100] or "not said" for scope in self._scopes))
        return {
            "imported": self._source[:1000],
            "not_shown": NOT_SHOWN,
            "wall_time": scopes[:1000] or None,
            "problems": "; ".join(self.problems.lines())[:9000] or None,
        }
