"""A search for the smallest prefill budget, or the largest batch, that keeps two promises under the same traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from roseplay.lab.find_summary import (
    MORE_RUNS,
    PROMISES,
    SMALLEST,
    Search,
    find_summary,
    is_kept,
    is_sure,
    wants_more,
)
from roseplay.lab.own_traffic import checked_object
from roseplay.lab.points import KNOBS, MAX_VALUE, Point, PointJob, Question, Value, Varied, parse_question
from roseplay.traffic.pace import Speed
from roseplay.traffic.scenario import checked_number

VERSION = 1
RANGES: Mapping[str, tuple[int, int]] = {"prefill_max_tokens": (16, 2048), "max_batch_size": (1, 64)}
_FIELDS = ("setting", "from", "to", *PROMISES)


@dataclass(frozen=True, slots=True)
class Find:
    """A checked search: the setting, the values it chooses from, and the most ITL p99 and TTFT p95, in ms."""

    setting: Varied
    grid: tuple[int, ...]
    promises: Mapping[str, float]
    question: Question


def parse_find(body: Mapping[str, Any], speed: Speed | None = None) -> Find:
    """Parse a search as a page or a program sends it.

    ``find`` is ``{"setting": "prefill_max_tokens", "itl_p99_ms": 20, "ttft_p95_ms": 250, "from": 16, "to": 2048}``; the
    setting may also be ``max_batch_size``. The other fields are those of ``points.parse_question``. A value whose repeats
    do not agree is measured more often, see ``find_summary.is_sure``.

    Args:
        speed: of the engine, see ``spec.parse_load``.

    Raises:
        ValueError: one sentence for the sender.
    """
    question = parse_question(body, "find", speed)
    if question.max_spread_pct is not None:
        raise ValueError("a search repeats a value until its verdict is sure: leave out max_spread_pct")
    given = checked_object(body["find"], "a search", _FIELDS)
    setting = given.get("setting")
    if setting not in KNOBS:
        raise ValueError(f"a search cannot vary {setting!r}: use {' or '.join(KNOBS)}")
    low, high = (
        int(checked_number(name, otherwise if given.get(name) is None else given[name], 1, MAX_VALUE))
        for name, otherwise in zip(("from", "to"), RANGES[setting], strict=True)
    )
    grid = grid_between(low, high)
    if len(grid) < 2:
        raise ValueError(f"there is nothing to choose from {low} to {high}: widen the range")
    promises = {name: checked_number(name, given.get(name), 0.01, 1e6, whole=False) for name in PROMISES}
    return Find(setting, grid, promises, question)


def grid_between(low: int, high: int) -> tuple[int, ...]:
    """Returns low, high, and the powers of two between them with the values halfway, each once."""
    steps = {base << power for power in range(21) for base in (2, 3)} | {1}
    return tuple(sorted({low, high, *(step for step in steps if low < step < high)} if low < high else {low}))


class FindJob(PointJob):
    """Runs a search; see ``PointJob``. Tries that are made when it is stopped or fails are kept."""

    kind = "find"

    def __init__(self, find: Find, live: Any, keep: Callable[[dict[str, Any]], str], **how: Any) -> None:
        baseline: Value = None if find.setting in SMALLEST else find.grid[-1]
        questions = dict.fromkeys((*find.grid, baseline), find.question)
        super().__init__(find.setting, find.question, questions, live, keep, **how)
        self._find, self._baseline_value = find, baseline
        self._baseline: dict[str, Any] | None = None

    def _measure(self) -> None:
        engine = self._open()
        self.state = "running"
        try:
            judged = self._baseline_value in self._find.grid
            self._baseline = self._measure_value(engine, self._baseline_value, until_sure=judged)
            self._tell()
            search = Search(self._find.grid, self.setting)
            while (value := search.next) is not None:
                known = value == self._baseline_value
                point = self._baseline if known else self._measure_value(engine, value, until_sure=True)
                self._points.append(point)
                search.record(is_kept(point, self._find.promises), more=wants_more(point, self._find.promises))
                self._tell()
        finally:
            if self._points:
                self.result = self._keep(self._document())

    def _measure_value(self, engine: Any, value: Value, *, until_sure: bool) -> Point:
        """Measure all repeats of a value, and more of them until its verdict is sure."""
        repeats, point = self._question.repeats, self._new_point(value)
        most = MORE_RUNS * repeats if until_sure else repeats
        while len(point["runs"]) < most:
            if len(point["runs"]) >= repeats and is_sure(point, self._find.promises, repeats):
                break
            run = self._progress_of(value, len(point["runs"]) + 1)
            self._runs.append(run)
            self._measure_run(engine, point, run)
        return point

    def _document(self) -> dict[str, Any]:
        document = {
            "roseplay_find": VERSION,
            **self._common(),
            "promises": dict(self._find.promises),
            "grid": list(self._find.grid),
            "baseline": self._baseline,
            "tries": list(self._points),
        }
        return {**document, "summary": find_summary(document)}
