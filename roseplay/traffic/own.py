"""Reads traffic from JSONL, CSV or conversations in ShareGPT's format, and writes it as JSONL.

A request has an arrival in seconds, a prompt (text, or only its length in tokens) and an answer of an exact length. In
JSONL each line is an object, in CSV the first row names the columns: ``arrival_s``, ``prompt`` or ``prompt_tokens``,
``answer_tokens``, and if wanted ``tenant`` and ``priority``, for the scheduling policies. Other fields and columns are
ignored, so that a log can be used as it is.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, Field

from roseplay.config import SamplingParams
from roseplay.formats.invalid import Number, Whole, between, unfit, validated
from roseplay.formats.json_text import RepeatedNameError, unique_names
from roseplay.traffic.arrivals import poisson
from roseplay.traffic.lengths import CHARACTERS_PER_TOKEN
from roseplay.traffic.prompts import Prompt, PromptSource
from roseplay.traffic.workload import Arrival, Workload

MAX_BYTES = 8 * 2**20
MAX_REQUESTS = 1000
MAX_ARRIVAL_S = 3600.0  # from the first arrival to the last
MAX_TIME_S = 1e11  # of an arrival in the file, which may be in Unix time
MAX_PROMPT = 100_000  # characters, and tokens where only a length is given
MAX_ANSWER_TOKENS = 4096
DEFAULT_RATE_PER_S = 4.0  # for conversations, which have no arrival times
_SHORT_WORDS = "the and for that with this from have they will what when your said each time make like".split()
_TEXTS = ("prompt", "tenant")
_FIELDS = ("arrival_s", "prompt", "prompt_tokens", "answer_tokens", "tenant", "priority")
_NAMES = "arrival_s, prompt (or prompt_tokens) and answer_tokens"


class OwnRequest(NamedTuple):
    arrival_s: float  # seconds after the first request
    prompt: str | int  # its text, or its length in tokens
    answer_tokens: int  # exact length of the answer
    tenant: str | None = None  # as in ``SamplingParams``
    priority: int = 0

    def params(self) -> SamplingParams:
        """Returns the parameters for an answer of exactly this length."""
        return SamplingParams(
            max_new_tokens=self.answer_tokens, ignore_eos=True, tenant=self.tenant, priority=self.priority
        )

    def row(self) -> list[Any]:
        """Returns it as ``parse_rows`` reads it, without the last values if they are the defaults."""
        return list(self[:3]) if self[3:] == (None, 0) else list(self)


def parse_traffic(content: bytes, *, rate_per_s: float | None = None, seed: int = 0) -> list[OwnRequest]:
    """Returns a file's requests in order of arrival, the first at 0. The first character determines the format.

    Args:
        rate_per_s: rate of Poisson arrivals to use instead of those in the file; for conversations, which have none,
            ``DEFAULT_RATE_PER_S`` by default.
        seed: seed of the Poisson arrivals.

    Raises:
        ValueError: one sentence that names the invalid line (in conversations, the item) and field.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"the traffic file is larger than {MAX_BYTES // 2**20} MiB: use a part of it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"line {line} is not UTF-8: save the traffic file as UTF-8") from None
    first = text.lstrip()[:1]
    read = _conversations if first == "[" else _jsonl if first == "{" else _csv
    requests: list[OwnRequest] = []
    for request in read(text, first == "[" or rate_per_s is not None):
        if len(requests) == MAX_REQUESTS:
            raise ValueError(f"the traffic file has more than {MAX_REQUESTS} requests: use a part of it")
        requests.append(request)
    if not requests:
        raise ValueError(f"the traffic file has no requests: give each {_NAMES}")
    if first == "[" or rate_per_s is not None:
        times = poisson(len(requests), DEFAULT_RATE_PER_S if rate_per_s is None else rate_per_s, seed=seed)
        return [request._replace(arrival_s=at_s) for request, at_s in zip(requests, times, strict=True)]
    return from_first(requests)


def parse_rows(rows: Any) -> list[OwnRequest]:
    """Returns requests from a JSON list of ``[arrival_s, prompt, answer_tokens, tenant, priority]``, the last two of
    which may be missing; raises ``ValueError``."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_REQUESTS:
        raise ValueError(f"the requests of traffic must be a list of 1 to {MAX_REQUESTS}")
    requests = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list | tuple) or not 3 <= len(row) <= len(OwnRequest._fields):
            raise ValueError(
                f"request {number} must be [arrival_s, prompt, answer_tokens], or with tenant and priority"
            )
        prompt = "prompt" if isinstance(row[1], str) else "prompt_tokens"
        names = ("arrival_s", prompt, "answer_tokens", "tenant", "priority")
        requests.append(_request(f"request {number}", dict(zip(names, row, strict=False))))
    return from_first(requests)


def from_first(requests: Sequence[OwnRequest]) -> list[OwnRequest]:
    """Returns the requests in order of arrival, the first at 0; raises ``ValueError`` if they span too long a time."""
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    zero = ordered[0].arrival_s
    if (lasts_s := ordered[-1].arrival_s - zero) > MAX_ARRIVAL_S:
        raise ValueError(
            f"the last request arrives {lasts_s:,.0f} s after the first; at most {MAX_ARRIVAL_S:,.0f} s are possible:"
            " use a part of the traffic, or give arrival_s in seconds"
        )
    return [request._replace(arrival_s=round(request.arrival_s - zero, 6)) for request in ordered]


def at_rate(requests: Sequence[OwnRequest], rate_per_s: float) -> list[OwnRequest]:
    """Returns the requests with arrivals stretched or compressed to this mean rate, keeping their pattern.

    Raises:
        ValueError: all arrive at once, so they have no rate.
    """
    span = requests[-1].arrival_s
    if not span:
        raise ValueError("all requests of this traffic arrive at once: it has no rate to change")
    factor = (len(requests) - 1) / rate_per_s / span
    return [request._replace(arrival_s=request.arrival_s * factor) for request in requests]


def to_jsonl(requests: Sequence[OwnRequest]) -> bytes:
    """Returns the requests as the JSONL that ``parse_traffic`` reads."""
    lines = []
    for request in requests:
        prompt = {"prompt" if isinstance(request.prompt, str) else "prompt_tokens": request.prompt}
        fields = {"arrival_s": round(request.arrival_s, 6), **prompt, "answer_tokens": request.answer_tokens}
        fields |= {"tenant": request.tenant} if request.tenant is not None else {}
        fields |= {"priority": request.priority} if request.priority else {}
        lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
    return "".join(lines).encode("utf-8", "replace")


def own_workload(
    requests: Sequence[OwnRequest],
    source_of: Callable[[str], PromptSource],
    vocab_size: int,
    *,
    seed: int = 0,
    room: int,
    count: Callable[[Prompt], int],
) -> tuple[Workload, list[int]]:
    """Returns the requests as a workload, and the prompts' lengths in tokens.

    A prompt given only by its length becomes that many random tokens, which share nothing with other prompts.

    Args:
        source_of: returns a source of prompts that consist of this text.
        seed: seed of the random tokens.
        room: the most tokens of a request, prompt and answer together.
        count: returns the number of tokens in a prompt.

    Raises:
        ValueError: a request does not fit; the message names it.
    """
    workload: Workload = []
    lengths = []
    for index, request in enumerate(requests):
        if isinstance(request.prompt, str):
            prompt = source_of(request.prompt).prompt(0)
        else:
            prompt = random_prompt(request.prompt, index, vocab_size, seed)
        length = count(prompt)
        check_room(index, length, request.answer_tokens, room)
        lengths.append(length)
        workload.append(Arrival(request.arrival_s, prompt, request.params()))
    return workload, lengths


def check_room(index: int, prompt_tokens: int, answer_tokens: int, room: int) -> None:
    """Raises ``ValueError`` if request ``index`` has more tokens than there is room for."""
    if prompt_tokens + answer_tokens > room:
        raise ValueError(
            f"request {index + 1} of the traffic has {prompt_tokens} prompt tokens and an answer of {answer_tokens}:"
            f" there is room for {room}, so shorten it or choose another model"
        )


def random_prompt(tokens: int, index: int, vocab_size: int, seed: int) -> list[int] | str:
    """Returns the prompt of request ``index`` if only its length is given: ids drawn from the seed.

    If the vocabulary is unknown (``vocab_size`` is 0), it is text: as many short words of about one token each.
    """
    rng = random.Random(f"own traffic {seed} {index}")
    if not vocab_size:
        return " ".join(rng.choices(_SHORT_WORDS, k=tokens))
    return [rng.randrange(vocab_size) for _ in range(tokens)]


def _jsonl(text: str, without_arrival: bool) -> Iterator[OwnRequest]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        fields = _json(line, f"line {number}")
        if not isinstance(fields, dict):
            raise ValueError(f"line {number} must be a JSON object with {_NAMES}")
        yield _request(f"line {number}", fields, without_arrival)


def _csv(text: str, without_arrival: bool) -> Iterator[OwnRequest]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] | None = None
    last = 0
    try:
        for cells in reader:
            line, last = last + 1, reader.line_num  # where the row begins: a quoted prompt may have several lines
            if not any(cells):
                continue
            if columns is None:
                columns = [cell.strip() for cell in cells]
                _check_columns(columns, line, without_arrival)
                continue
            if len(cells) != len(columns):
                raise ValueError(f"line {line} has {len(cells)} cells, the header has {len(columns)}")
            fields = {name: cell for name, cell in zip(columns, cells, strict=True) if name in _FIELDS and cell.strip()}
            numbers = {name: _number(cell) for name, cell in fields.items() if name not in _TEXTS}
            yield _request(f"line {line}", {**fields, **numbers}, without_arrival)
    except csv.Error as error:
        raise ValueError(f"line {max(1, reader.line_num)} is not CSV: {error}") from None


def _check_columns(columns: Sequence[str], line: int, without_arrival: bool) -> None:
    for name in _FIELDS:
        if columns.count(name) > 1:
            raise ValueError(f"line {line}, the header, has the column {name} twice: keep one")
    missing = [name for name in ("arrival_s", "answer_tokens") if name not in columns]
    if without_arrival and "arrival_s" in missing:
        missing.remove("arrival_s")
    if not {"prompt", "prompt_tokens"} & {*columns}:
        missing.insert(0, "prompt or prompt_tokens")
    if missing:
        raise ValueError(f"line {line}, the header, has no column {', '.join(missing)}: name {_NAMES}")


def _conversations(text: str, _: bool) -> Iterator[OwnRequest]:
    """Yields the first exchange of each conversation: a human's text, and the length of the answer to it."""
    for number, item in enumerate(_json(text, "the file"), 1):
        turns = validated(_Conversation, item, f"item {number}").conversations
        question = next((place for place, turn in enumerate(turns) if turn.sender in ("human", "user")), None)
        if question is None or not turns[question].value.strip():
            continue  # data sets have a few of these
        answer = turns[question + 1].value if question + 1 < len(turns) else ""
        tokens = min(MAX_ANSWER_TOKENS, max(1, len(answer) // CHARACTERS_PER_TOKEN))
        yield _request(f"item {number}", {"prompt": turns[question].value, "answer_tokens": tokens}, True)


class _Turn(BaseModel):
    sender: Annotated[str, Field(alias="from")]
    value: str


class _Conversation(BaseModel):
    """An item of ShareGPT's format; other fields are ignored."""

    conversations: list[_Turn]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise unfit("text that is not blank")
    return text


class _Row(BaseModel):
    """The fields of a request in a file; others are ignored."""

    arrival_s: Annotated[Number, between(0, MAX_TIME_S)]
    prompt: Annotated[str, Field(max_length=MAX_PROMPT), AfterValidator(_not_blank)] | None = None
    prompt_tokens: Annotated[Whole, between(1, MAX_PROMPT)] | None = None
    answer_tokens: Annotated[Whole, between(1, MAX_ANSWER_TOKENS)]
    tenant: Any = None
    priority: Any = 0


def _request(where: str, fields: Mapping[str, Any], without_arrival: bool = False) -> OwnRequest:
    named = {name: _writable(value) if isinstance(value, str) else value for name, value in fields.items()}
    values = {name: value for name, value in named.items() if name in _FIELDS and value is not None}
    values |= {"arrival_s": 0.0} if without_arrival else {}
    if "prompt" in values:
        values.pop("prompt_tokens", None)
    elif "prompt_tokens" not in values:
        raise ValueError(f"{where} has no prompt: give its text as prompt, or its length as prompt_tokens")
    row = validated(_Row, values, where)
    tenant, priority = None if row.tenant == "" else row.tenant, row.priority
    if isinstance(priority, float) and priority.is_integer():
        priority = int(priority)  # from a table
    prompt = row.prompt if row.prompt is not None else row.prompt_tokens or 0
    request = OwnRequest(row.arrival_s, prompt, row.answer_tokens, tenant, priority)
    try:
        request.params()
    except ValueError as error:
        raise ValueError(f"{where}, {error}") from None
    return request


def _writable(text: str) -> str:
    """Returns text with U+FFFD in place of halves of surrogate pairs, which JSON can have, but UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _number(text: str) -> float | str:
    """Returns a cell's number, or, for the error message, its text if it is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique_names)
    except RepeatedNameError as error:
        raise ValueError(f"{where}: {error}: keep one") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None
    except ValueError as error:
        place = f"line {error.lineno}" if where == "the file" and isinstance(error, json.JSONDecodeError) else where
        raise ValueError(f"{place} is not JSON") from None
