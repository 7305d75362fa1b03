"""The process that checks grammars for clients: compiles each in a child with limits, since llguidance cannot be stopped.

The first line of its input is the argument of ``open_backend``; each further one is a value of
``SamplingParams.structured_outputs``. For each it writes a line: ``[bytes that it takes, null]`` or ``[0, the reason]``.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING

from roseplay.config import SettingError
from roseplay.model.grammar import brief, compile_grammar, open_backend, refused

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_S = 5  # of processor time
MOST_BYTES = 1 << 26
# Answers drawn at random, to find grammars that lead to where no token can follow: llguidance does not look ahead.
_WALKS, _WALKS_AT_LEAST, _WALK_TOKENS, _WALKS_S = 12, 3, 100, 0.2
_QUOTED = re.compile(r'"(.*?)(?<!\\)"')
MARKS = re.compile(r'[\s",:{}\[\]]+')


def main() -> None:
    backend = json.loads(sys.stdin.readline())
    os.nice(5)  # steps of the engine go first
    try:
        ll = open_backend(backend)
    except SettingError as error:
        for _ in sys.stdin:
            _answer(0, error.problem)
        return
    marks = [token for token in range(ll.vocab_size) if MARKS.fullmatch(ll.decode_str([token]))]
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _check(ll, json.loads(line), marks)
        _, status = os.waitpid(child, 0)
        if status:
            over = f"{MOST_S} s" if os.WTERMSIG(status) == signal.SIGXCPU else f"{MOST_BYTES >> 20} MB"
            _answer(0, refused(f"it takes more than {over} to compile").problem)


def _answer(size: int, problem: str | None) -> None:
    os.write(1, json.dumps([size, problem]).encode() + b"\n")


def _check(ll: LLTokenizer, structure: str, marks: list[int]) -> None:
    """Compile a grammar, answer, and end this process; the system ends it if it needs too much."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S + 1))  # a child's time begins at 0
    before = _data_bytes()
    if before:
        resource.setrlimit(resource.RLIMIT_DATA, (before + MOST_BYTES, before + MOST_BYTES))
    try:
        compiled = compile_grammar(ll, structure)
        size = _data_bytes() - before
        walk(ll, compiled, structure, marks)
        _answer(size, None)
    except SettingError as error:
        _answer(0, error.problem)
    except MemoryError:
        os._exit(1)
    except BaseException as error:  # a panic in llguidance is not an Exception
        _answer(0, refused(f"llguidance fails ({type(error).__name__}: {brief(str(error))})").problem)
    os._exit(0)


def _data_bytes() -> int:
    """Returns the size of this process's private memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def walk(ll: LLTokenizer, compiled: LLMatcher, structure: str, marks: list[int]) -> None:
    """Follow a grammar at random, also along its own texts; raises ``SettingError`` where no token can follow."""
    draw, end, texts = random.Random(0), time.process_time() + _WALKS_S, _QUOTED.findall(structure)
    for number in range(_WALKS):
        if number >= _WALKS_AT_LEAST and time.process_time() > end:
            return
        matcher, answer = compiled.deep_copy(), list[int]()
        while len(answer) < _WALK_TOKENS:
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_error() or not mask:
                raise refused(f"after {ll.decode_str(answer).rstrip()[-40:]!r}, {brief(matcher.get_error())}")
            text = ll.tokenize_str(draw.choice(texts)) if texts and draw.random() < 0.25 else []
            count = matcher.try_consume_tokens(text[: draw.randint(0, len(text))])
            answer += text[:count]
            if not count:
                answer.append(_drawn(draw, mask, marks))
                if answer[-1] in ll.eos_tokens:
                    break
                matcher.consume_tokens(answer[-1:])


def _drawn(draw: random.Random, mask: int, marks: list[int]) -> int:
    """Returns a random token of those in a mask; every other one is punctuation, so that answers come to their end."""
    possible = [token for token in marks if mask >> token & 1] if draw.random() < 0.5 else []
    if possible:
        return draw.choice(possible)
    below = draw.randrange(mask.bit_length())
    return (mask >> below & -(mask >> below)).bit_length() - 1 + below


if __name__ == "__main__":
    main()
