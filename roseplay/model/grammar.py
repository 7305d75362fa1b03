"""Grammars that answers must follow, compiled by llguidance for a model's tokenizer. Needs no torch: clients check
grammars before they submit a request."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roseplay.config import SettingError
from roseplay.core.request import PLACEHOLDER, Request

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher, LLTokenizer

    Bits = npt.NDArray[np.int32]

Backend = tuple[str, int, list[int]]  # a tokenizer as JSON text, size of the vocabulary, end-of-sequence tokens
NAME = "structured_outputs"  # the setting
_BRIEF = 300  # characters
_NO_TEXT, _NO_TOKEN = "no text matches it", "no token of the model can follow"
# What a JSON schema has beside keywords: data, and schemas by name.
_DATA = ("const", "default", "enum", "examples")
_NAMED = ("$defs", "definitions", "patternProperties", "properties")
# Between two tokens of JSON: a space, or a line break and indentation. Without a limit, small models go on with it forever.
_WHITESPACE: Any = {"whitespace_pattern": r"( |\r?\n[ \t]{0,32})"}


@dataclass(slots=True)
class _Compiled:
    """A compiled grammar, which all its matchers share; after one of them fails, as when its lexer grows too large, each would."""

    ll: LLMatcher
    tokenizer: LLTokenizer
    size: int  # bytes that it takes
    failed: bool = False


class Matcher:
    """Follows one answer in its grammar; used by one thread at a time.

    Attributes:
        error: why the answer cannot go on, in one line; None while it can.
        words: number of 32-bit words in a mask of the tokenizer's vocabulary.
    """

    __slots__ = ("_compiled", "_eos_token_ids", "_ll", "_num_taken", "error", "words")

    def __init__(self, compiled: _Compiled) -> None:
        self._compiled, self._ll = compiled, compiled.ll.deep_copy()
        self._eos_token_ids = compiled.tokenizer.eos_tokens
        self.words = -(-compiled.tokenizer.vocab_size // 32)
        self._num_taken = 0
        self.error: str | None = None

    def follow(self, request: Request, late: int) -> None:
        """Take the tokens of the request's answer that are new since the last call.

        Args:
            late: the token that its placeholder stands for, if it has one; negative if none could be drawn.
        """
        new = request.token_ids[request.num_prompt_tokens + self._num_taken :]
        if not new or self.error is not None:
            return
        if new[-1] == PLACEHOLDER:
            new[-1] = late
            if late < 0 or late in request.eos_token_ids:
                return  # it ends once the host has read this token
        self._num_taken += len(new)
        if not self._ll.consume_tokens(new):
            self._fail()

    def fill(self, masks: Bits, draft: Sequence[int]) -> None:
        """Set bit t of row n if token t may follow the answer and n tokens of ``draft``.

        Args:
            masks: zeros ``[1 + len(draft), words]``. Rows stay zero after the first token of the draft that may not follow,
                and all do if there is an error.
        """
        if self.error is not None:
            return
        self._ll.unsafe_compute_mask_ptr(masks[0].ctypes.data, masks[0].nbytes)  # without the interpreter's lock
        if self._ll.is_error() or not masks[0].any():
            self._fail()
            masks[0] = 0
            return
        count = 0
        for row, token in zip(masks[1:], draft, strict=True):
            if token in self._eos_token_ids or not self._ll.try_consume_tokens([token]):
                break
            count += 1
            self._ll.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if count:
            self._ll.rollback(count)

    def _fail(self) -> None:
        self.error, self._compiled.failed = brief(self._ll.get_error()), True


class Grammars:
    """Compiles checked grammars for one tokenizer, in threads and one after the other, and keeps the last ones. Thread-safe.

    Args:
        backend: returns what ``open_backend`` takes, see ``backend_of``; called for the first grammar.
        kept_bytes: most that the kept ones may take together.
    """

    def __init__(self, backend: Callable[[], Backend], kept_bytes: int = 1 << 28) -> None:
        self._backend, self._kept_bytes = backend, kept_bytes
        self._ll: LLTokenizer | None = None
        self._compiled: dict[str, _Compiled] = {}
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def find(self, structure: str) -> Matcher | None:
        """Returns a matcher for a new answer, at once, if this grammar is compiled."""
        with self._lock:
            compiled = self._compiled.pop(structure, None)
            if compiled is None or compiled.failed:
                return None
            self._compiled[structure] = compiled  # the last one used comes last
            return Matcher(compiled)

    def start(self, structure: str, size: int = 0) -> Future[Matcher]:
        """Returns a matcher for a new answer as soon as its grammar is compiled, or ``SettingError`` if none can follow it.

        Args:
            structure: a value of ``SamplingParams.structured_outputs``.
            size: bytes that its compiled grammar takes.
        """
        future: Future[Matcher] = Future()
        matcher = self.find(structure)
        if matcher is not None:
            future.set_result(matcher)
        else:  # a daemon, as the end of the program does not wait for it
            arguments = future, structure, size
            threading.Thread(target=self._compile, args=arguments, name="roseplay-grammars", daemon=True).start()
        return future

    def _compile(self, future: Future[Matcher], structure: str, size: int) -> None:
        with self._turn:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self.find(structure) or self._new(structure, max(size, 1 << 20)))
            except BaseException as error:  # a panic in llguidance is not an Exception
                future.set_exception(error)

    def _new(self, structure: str, size: int) -> Matcher:
        self._ll = self._ll or open_backend(self._backend())
        compiled = _Compiled(compile_grammar(self._ll, structure), self._ll, size)
        with self._lock:
            while self._compiled and size + sum(item.size for item in self._compiled.values()) > self._kept_bytes:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[structure] = compiled
        return Matcher(compiled)


def compile_grammar(ll: LLTokenizer, structure: str) -> LLMatcher:
    """Compile a value of ``SamplingParams.structured_outputs``; raises ``SettingError`` if no answer can follow it."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)  # else errors include the grammar and the answer
    try:
        compiled = LLMatcher(ll, _grammar(json.loads(structure)), log_level=0, limits=limits)
    except SettingError:
        raise
    except (ValueError, RecursionError) as error:
        raise refused(brief(str(error))) from None
    possible = not compiled.is_error() and any(compiled.compute_bitmask())  # takes the longest, and is kept for copies
    if compiled.is_error() or not possible:
        raise refused(brief(compiled.get_error(), _NO_TEXT))
    return compiled


def refused(reason: str) -> SettingError:
    """Returns the error of a grammar that no answer can follow."""
    return SettingError(NAME, f"cannot be followed: {reason}")


def _grammar(structure: dict[str, Any]) -> str:
    from llguidance import LLMatcher

    match structure:
        case {"json": schema}:
            schema = json.loads(schema) if isinstance(schema, str) else schema
            schema = {} if schema is True else schema
            _check_schema(schema)
            return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_WHITESPACE)
        case {"regex": regex}:
            return LLMatcher.grammar_from_regex(regex)
    # One terminal: as alternatives of a rule, each text would take a place in the parser's row of limited length.
    return LLMatcher.grammar_from_lark("start: TEXT\nTEXT: " + " | ".join(map(json.dumps, structure["choice"])))


def _check_schema(schema: Any) -> None:
    """Raises ``SettingError`` for what llguidance accepts in a JSON schema and does not follow."""
    if schema is False:
        raise refused(_NO_TEXT)
    if not isinstance(schema, dict):
        raise refused("a JSON schema is an object or a boolean")
    if "x-guidance" in schema:
        raise refused("x-guidance, llguidance's options, is not supported: leave it out")
    for part in _schemas(schema):
        least, required = part.get("minProperties"), part.get("required")
        named = len(set(map(str, required))) if isinstance(required, list) else 0
        open_ended = part.get("additionalProperties") is not False or part.get("patternProperties")
        if isinstance(least, int | float) and least > named + 1 and open_ended:
            raise refused(
                f"minProperties is {least}, but only the {named} required names and one more are sure to differ"
            )


def _schemas(schema: Any, named: bool = False) -> Iterator[dict[str, Any]]:
    """Yields a JSON schema and all schemas in it; ``named`` if it is a mapping of names to schemas instead."""
    if isinstance(schema, dict) and not named:
        yield schema
    for name, part in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if isinstance(part, dict | list) and (named or name not in _DATA):
            yield from _schemas(part, named=not named and name in _NAMED)


def brief(message: str, other: str = _NO_TOKEN) -> str:
    """Returns a message of llguidance as one line, without its drawings of where in the text it is.

    Args:
        other: returned instead of a single word, which is a name of llguidance's own.
    """
    lines = [line.strip() for line in message.replace("<non-verbose/>", "").splitlines()]
    text = " ".join(line for line in lines if line.strip("^") and "| start: " not in line)
    return text[:_BRIEF] if " " in text else other


def backend_of(tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int]) -> Backend:
    """Returns what ``open_backend`` takes.

    Raises:
        SettingError: llguidance is not installed, or cannot be used with this model.
    """
    if tokenizer is None:
        raise SettingError(NAME, "needs a tokenizer, which this model does not have: leave it out")
    if not eos_token_ids:
        raise SettingError(NAME, "needs an end-of-sequence token, which this model does not have: leave it out")
    if not hasattr(os, "fork"):  # which ``grammar_check`` needs
        raise SettingError(NAME, "works on Linux and macOS only: leave it out")
    if importlib.util.find_spec("llguidance") is None:
        raise SettingError(NAME, "needs llguidance: pip install 'roseplay[structured]'")
    if not getattr(tokenizer, "is_fast", False):
        raise SettingError(NAME, "cannot be used with this model's tokenizer, which is not a fast one: leave it out")
    backend = copy.copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return str(backend.to_str()), max(vocab_size, len(tokenizer)), sorted(eos_token_ids)


def open_backend(backend: Backend) -> LLTokenizer:
    """Returns llguidance's tokenizer, which takes up to a second; raises ``SettingError`` if it cannot use this one."""
    from llguidance import LLTokenizer

    text, vocab_size, eos_token_ids = backend
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=eos_token_ids)
    except ValueError as error:
        raise SettingError(NAME, f"cannot be used with this model's tokenizer: {brief(str(error))}") from None
