"""Grammars that answers must follow, compiled by llguidance for a model's tokenizer. Needs no torch: clients check
grammars before they submit a request."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from roseplay.config import SettingError
from roseplay.core.request import PLACEHOLDER, Request

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NAME = "structured_outputs"  # the setting
_MOST_COMPILED = 64  # grammars that are kept, of each tokenizer
_BRIEF = 300  # characters
# Between two tokens of JSON: a space, or a line break and indentation. Without a limit, small models go on with it forever.
_WHITESPACE: Any = {"whitespace_pattern": r"( |\r?\n[ \t]{0,32})"}
Bits = npt.NDArray[np.int32]


class Matcher:
    """Follows one answer in its grammar; used by one thread at a time.

    Attributes:
        error: why the answer cannot go on, in one line; None while it can.
        words: number of 32-bit words in a mask of the tokenizer's vocabulary.
    """

    __slots__ = ("_eos_token_ids", "_ll", "_num_taken", "error", "words")

    def __init__(self, ll: LLMatcher, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._ll, self._eos_token_ids, self.words = ll, eos_token_ids, -(-vocab_size // 32)
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
            self.error = brief(self._ll.get_error())

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
            self.error = brief(self._ll.get_error()) or "no token of the model can follow"
            masks[0] = 0
            return
        taken = 0
        for row, token in zip(masks[1:], draft, strict=True):
            if token in self._eos_token_ids or not self._ll.try_consume_tokens([token]):
                break
            taken += 1
            self._ll.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if taken:
            self._ll.rollback(taken)


class Grammars:
    """Compiles grammars for one tokenizer and keeps the last ones. Thread-safe."""

    def __init__(self, ll: LLTokenizer, eos_token_ids: frozenset[int]) -> None:
        self._ll, self._eos_token_ids = ll, eos_token_ids
        self._compiled: dict[str, LLMatcher] = {}
        self._lock = threading.Lock()

    def __contains__(self, structure: str) -> bool:
        """Whether this grammar is compiled."""
        return structure in self._compiled

    def matcher(self, structure: str) -> Matcher:
        """Returns a matcher for a new answer; raises ``SettingError`` if no answer can follow the grammar.

        Args:
            structure: a value of ``SamplingParams.structured_outputs``.
        """
        compiled = self._compiled.get(structure) or self._compile(structure)
        with self._lock:
            self._compiled.pop(structure, None)
            self._compiled[structure] = compiled  # the last one used comes last
            if len(self._compiled) > _MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            return Matcher(compiled.deep_copy(), self._ll.vocab_size, self._eos_token_ids)

    def _compile(self, structure: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)  # else errors include the grammar and the answer
        try:
            compiled = LLMatcher(self._ll, _grammar(json.loads(structure)), log_level=0, limits=limits)
        except ValueError as error:
            raise _refused(brief(str(error))) from None
        if compiled.is_error():
            raise _refused(brief(compiled.get_error()))
        first = np.frombuffer(compiled.compute_bitmask(), np.uint8)  # takes the longest, and is kept for all copies
        if compiled.is_error() or not first.any():
            raise _refused("no text matches it")
        return compiled


def _refused(reason: str) -> SettingError:
    return SettingError(NAME, f"cannot be followed: {reason}")


def _grammar(structure: dict[str, Any]) -> str:
    from llguidance import LLMatcher, grammar_from

    match structure:
        case {"json": schema}:
            text = schema if isinstance(schema, str) else json.dumps(schema)
            return LLMatcher.grammar_from_json_schema(text, defaults=_WHITESPACE)
        case {"regex": regex}:
            return LLMatcher.grammar_from_regex(regex)
    return grammar_from("choice", json.dumps(structure["choice"]))


def brief(message: str) -> str:
    """Returns a message of llguidance as one line, without its drawings of where in the text it is."""
    lines = [line.strip() for line in message.replace("<non-verbose/>", "").splitlines()]
    return " ".join(line for line in lines if line.strip("^") and "| start: " not in line)[:_BRIEF]


_of_tokenizers: weakref.WeakKeyDictionary[Any, Grammars] = weakref.WeakKeyDictionary()
_opening = threading.Lock()


def grammars_of(tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int]) -> Grammars:
    """Returns the compiler for a model's tokenizer; it takes about a second to make, once for each tokenizer.

    Raises:
        SettingError: llguidance is not installed, or cannot be used with this model.
    """
    if tokenizer is None:
        raise SettingError(NAME, "needs a tokenizer, which this model does not have: leave it out")
    if not eos_token_ids:
        raise SettingError(NAME, "needs an end-of-sequence token, which this model does not have: leave it out")
    with _opening:
        if tokenizer not in _of_tokenizers:
            try:
                from llguidance.hf import from_tokenizer

                ll = from_tokenizer(tokenizer, max(vocab_size, len(tokenizer)), sorted(eos_token_ids))
            except ModuleNotFoundError:
                raise SettingError(NAME, "needs llguidance: pip install 'roseplay[structured]'") from None
            except ValueError as error:
                raise SettingError(NAME, f"cannot be used with this model's tokenizer: {brief(str(error))}") from None
            _of_tokenizers[tokenizer] = Grammars(ll, frozenset(eos_token_ids))
        return _of_tokenizers[tokenizer]
