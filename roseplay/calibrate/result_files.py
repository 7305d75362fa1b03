"""Reads measurements from the results of benchmark clients: vLLM's, SGLang's, and this engine's own.

``vllm bench serve --save-result`` writes a JSON object, or one a line with ``--append-result``; SGLang's
``bench_serving --output-file`` writes one a line. Both have the same keys for lengths and times. ``roseplay bench decode``
and ``grid`` write one cell or several with ``--json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roseplay.sim.points import Measurement

FORMATS = "the JSON of vllm bench serve, of SGLang's bench_serving, or of roseplay bench grid or decode"
_SERVED = ("completed", "duration", "total_input_tokens", "total_output_tokens")
_CELL = ("batch", "context", "step_ms")
# Gaps between pieces are no gaps between tokens if they are this much longer than the time per token.
_MANY_TOKENS_A_PIECE = 1.3


def read_results(files: Sequence[Path]) -> tuple[list[Measurement], list[str]]:
    """Returns the measurements of all files, and a line for each row that was left out.

    Raises:
        ValueError: a file cannot be read, or is of another format; one line.
    """
    points: list[Measurement] = []
    left_out: list[str] = []
    for file in files:
        for number, row in enumerate(_rows(file), 1):
            where = f"{file}, result {number}"
            try:
                found = _measurements(row)
            except KeyError as error:
                raise ValueError(f"{where} has no {error.args[0]}: it must be {FORMATS}") from None
            except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
                raise ValueError(f"{where} cannot be used: {' '.join(str(error).split())}") from None
            points += found.points
            left_out += [f"{where} is left out: {found.left_out}"] if found.left_out else []
    return points, left_out


class _Found:
    def __init__(self, *points: Measurement, left_out: str = "") -> None:
        self.points, self.left_out = points, left_out


def _rows(file: Path) -> list[Mapping[str, Any]]:
    """Returns the objects of a JSON or JSONL file."""
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not text: give {FORMATS}") from None
    try:
        found = json.loads(text)
        rows = found if isinstance(found, list) else [found]
    except ValueError:
        rows = list(_lines(file, text))
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(f"{file} has no results: give {FORMATS}")
    return rows


def _lines(file: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError:
                raise ValueError(f"{file}, line {number} is not JSON: give {FORMATS}") from None


def _measurements(row: Mapping[str, Any]) -> _Found:
    """Returns what one result measured; raises ``KeyError``, ``TypeError``, ``ValueError`` and such for a bad one."""
    if isinstance(row.get("cells"), list):
        return _Found(*map(_of_cell, row["cells"]))
    if all(name in row for name in _CELL):
        return _Found(_of_cell(row))
    if any(name in row for name in _SERVED):
        return _of_served(row)
    raise ValueError(f"its format is unknown: give {FORMATS}")


def _of_cell(cell: Mapping[str, Any]) -> Measurement:
    batch, context = (_number(cell[name]) for name in ("batch", "context"))
    prompts_per_s = cell.get("prefill_tokens_per_s")
    return Measurement(
        measured="itl",
        prompt=round(context),
        answer=round(cell.get("new_tokens", 0)),
        streams=round(batch),
        seconds=_number(cell["step_ms"]["p50"]) / 1e3,
        prompts_s=batch * context / _number(prompts_per_s) if prompts_per_s else None,
    )


def _of_served(row: Mapping[str, Any]) -> _Found:
    """Reads a result of vLLM's or SGLang's client: the median gap or, where pieces have several tokens, the mean TPOT."""
    completed, duration, *tokens = (_number(row[name]) for name in _SERVED)
    prompt, answer = (count / completed for count in tokens)
    tpot_ms = row.get("mean_tpot_ms") or row.get("median_tpot_ms")
    if answer < 2 or not tpot_ms:
        return _Found(left_out="its answers have a single token, so that there are no gaps between tokens")
    if (row.get("accept_length") or 1) > 1:
        return _Found(left_out="speculative decoding is not modelled")
    itl_ms, gap_ms = row.get("median_itl_ms"), row.get("mean_itl_ms")
    one_each = itl_ms and (not gap_ms or gap_ms <= _MANY_TOKENS_A_PIECE * tpot_ms)
    streaming = tokens[1] * tpot_ms / 1e3 / duration  # answers that streamed at once, on average (Little's law)
    clients, closed = row.get("max_concurrency"), not _is_finite(row.get("request_rate"))
    if clients and closed:
        clients = min(_number(clients), completed)
        if streaming < clients / 2:
            return _Found(
                left_out=f"of {clients:.0f} clients only {streaming:.1f} received answers at once, the others waited"
            )
    return _Found(
        Measurement(
            measured="itl" if one_each else "tpot",
            prompt=round(prompt),
            answer=round(answer),
            streams=max(1, round(clients if clients and closed else streaming)),
            seconds=_number(itl_ms if one_each else tpot_ms) / 1e3,
            ttft_s=_number(row["median_ttft_ms"]) / 1e3 if row.get("median_ttft_ms") else None,
        )
    )


def _number(value: Any) -> float:
    """Returns a positive number; raises ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{str(value)[:40]!r} is not a number above 0")
    return float(value)


def _is_finite(rate: Any) -> bool:
    return isinstance(rate, int | float) and math.isfinite(rate)
