"""Reads measurements from the results of benchmark clients: vLLM's, SGLang's, and this engine's own.

``vllm bench serve --save-result`` writes a JSON object, or one a line with ``--append-result``; SGLang's
``bench_serving --output-file`` writes one a line. Both have the same keys for lengths and times. ``roseplay bench decode
--json`` writes one cell or several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from roseplay.extras.simulation.limits import Streams, Tokens
from roseplay.extras.simulation.points import Measurement
from roseplay.formats.invalid import first_fault

FORMATS = "the JSON of vllm bench serve, of SGLang's bench_serving, or of roseplay bench decode"
# Gaps between pieces are no gaps between tokens if they are this much longer than the time per token.
MANY_TOKENS_A_PIECE = 1.3

_MEASUREMENT = TypeAdapter(Measurement)
_Milliseconds = Annotated[float, Field(strict=True, ge=1e-6, le=1e9)]
_Amount = Annotated[float, Field(strict=True, ge=0, le=1e12)]
_NOT_ZERO = BeforeValidator(lambda value: None if value == 0 else value)  # 0 stands for what was not measured
_Measured = Annotated[_Milliseconds | None, _NOT_ZERO]


class _StepTimes(BaseModel):
    p50: _Milliseconds


class _Cell(BaseModel):
    """Decode steps of ``roseplay bench decode``."""

    batch: Streams
    context: Annotated[Tokens, Field(ge=1)]
    new_tokens: Tokens = 0
    step_ms: _StepTimes
    prefill_tokens_per_s: Annotated[Annotated[float, Field(strict=True, ge=1e-3, le=1e12)] | None, _NOT_ZERO] = None


class _Grid(BaseModel):
    cells: Annotated[list[_Cell], Field(min_length=1)]


class _Served(BaseModel):
    """A result of vLLM's or SGLang's client in which requests were answered."""

    completed: Annotated[_Amount, Field(ge=1)]
    duration: Annotated[float, Field(strict=True, ge=1e-6, le=1e9)]
    total_input_tokens: Annotated[_Amount, Field(ge=1)]
    total_output_tokens: _Amount
    mean_tpot_ms: _Measured = None
    median_tpot_ms: _Measured = None
    mean_itl_ms: _Measured = None
    median_itl_ms: _Measured = None
    median_ttft_ms: _Measured = None
    max_concurrency: _Amount | None = None
    request_rate: Annotated[float, Field(gt=0)] | None = None  # infinite, or "inf", in a closed loop
    # With speculative decoding: SGLang's, and vLLM's, which only has them where tokens were drafted.
    accept_length: _Amount | None = None
    spec_decode_acceptance_length: _Amount | None = None
    spec_decode_num_drafts: _Amount | None = None


_KNOWN = {"cells", *_Cell.model_fields, *_Served.model_fields}


class _LeftOutError(Exception):
    """A result is not used, and why."""


def read_results(files: Sequence[Path]) -> tuple[list[Measurement], list[str]]:
    """Returns the measurements of all files, and a line for each row that was left out.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is of another format; one line.
    """
    points: list[Measurement] = []
    left_out: list[str] = []
    for file in files:
        for number, row in enumerate(_rows(file), 1):
            where = f"{file}, result {number}"
            try:
                points += _measurements(row)
            except _LeftOutError as error:
                left_out.append(f"{where} is left out: {error}")
            except ValidationError as error:
                raise ValueError(f"{where} cannot be used: {first_fault(error)}") from None
    return points, left_out


def _rows(file: Path) -> list[Mapping[str, Any]]:
    """Returns the objects of a JSON or JSONL file."""
    text = file.read_bytes()
    try:
        found = from_json(text)
        rows = found if isinstance(found, list) else [found]
    except ValueError:
        rows = list(_lines(file, text))
    if not rows or not all(isinstance(row, Mapping) and row.keys() & _KNOWN for row in rows):
        raise ValueError(f"{file} has no results: give {FORMATS}")
    return rows


def _lines(file: Path, text: bytes) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield from_json(line)
            except ValueError:
                raise ValueError(f"{file}, line {number} is not JSON: give {FORMATS}") from None


def _measurements(row: Mapping[str, Any]) -> list[Measurement]:
    """Returns what one result measured; raises ``ValidationError`` for a bad one, and ``_LeftOutError``."""
    if "cells" in row:
        return list(map(_of_cell, _Grid.model_validate(row).cells))
    if row.keys() & _Cell.model_fields.keys():
        return [_of_cell(_Cell.model_validate(row))]
    if row.get("completed") == 0:
        raise _LeftOutError("completed is 0: none of its requests was answered")
    return [_of_served(_Served.model_validate(row))]


def _of_cell(cell: _Cell) -> Measurement:
    rate = cell.prefill_tokens_per_s
    return _measurement(
        measured="itl",
        prompt=cell.context,
        answer=cell.new_tokens,
        streams=cell.batch,
        seconds=cell.step_ms.p50 / 1e3,
        prompts_s=cell.batch * cell.context / rate if rate else None,
    )


def _of_served(row: _Served) -> Measurement:
    """Reads a result of vLLM's or SGLang's client: the median gap or, where pieces have several tokens, the mean TPOT."""
    prompt, answer = row.total_input_tokens / row.completed, row.total_output_tokens / row.completed
    tpot_ms = row.mean_tpot_ms or row.median_tpot_ms
    if answer < 2 or not tpot_ms:
        raise _LeftOutError("its answers have a single token, so that there are no gaps between tokens")
    if row.accept_length or row.spec_decode_acceptance_length or row.spec_decode_num_drafts:
        raise _LeftOutError("speculative decoding is not modelled")
    one_each = row.median_itl_ms is not None and (row.mean_itl_ms or 0.0) <= MANY_TOKENS_A_PIECE * tpot_ms
    streaming = row.total_output_tokens * tpot_ms / 1e3 / row.duration  # on average, by Little's law
    streams, open_loop = streaming, row.request_rate is not None and math.isfinite(row.request_rate)
    if row.max_concurrency and not open_loop:
        streams = min(row.max_concurrency, row.completed)
        if streaming < streams / 2:
            raise _LeftOutError(
                f"of {streams:.0f} clients only {streaming:.1f} received answers at once, the others waited"
            )
    return _measurement(
        measured="itl" if one_each else "tpot",
        prompt=round(prompt),
        answer=round(answer),
        streams=max(1, round(streams)),
        seconds=((row.median_itl_ms if one_each else tpot_ms) or 0.0) / 1e3,
        ttft_s=row.median_ttft_ms and row.median_ttft_ms / 1e3,
    )


def _measurement(**values: Any) -> Measurement:
    return _MEASUREMENT.validate_python(values)
