"""Checks grammars before their requests are submitted, in a process that can be ended."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from roseplay.config import SamplingParams, SettingError
from roseplay.engine.engine_like import HasTokenizer, Prompt
from roseplay.engine.prompts import encode_prompt
from roseplay.model.grammar import NAME, backend_of

_COMMAND = (sys.executable, "-P", "-m", "roseplay.model.grammar_check")
_MOST_KNOWN = 1024  # grammars
Verdict = tuple[int, str | None]


class GrammarChecks:
    """Checks grammars for one tokenizer, one after the other, and remembers the results. Thread-safe.

    Args:
        backend: see ``backend_of``.
        command: the process, see ``roseplay/model/grammar_check.py``.
        within_s: time for one grammar; the process limits itself before, unless the machine is very busy.
        idle_s: time without a grammar after which the process ends.
    """

    def __init__(
        self, backend: Any, command: Sequence[str] = _COMMAND, within_s: float = 60.0, idle_s: float = 60.0
    ) -> None:
        self._backend, self._command, self._within_s, self._idle_s = backend, command, within_s, idle_s
        self._waiting: dict[str, list[Future[int]]] = {}  # by grammar, in the order in which they came
        self._known: dict[bytes, Verdict] = {}
        self._changed = threading.Condition()
        self._runs = self._abandoned = False
        self._checking: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, structure: str) -> Future[int]:
        """Returns the bytes that a compiled grammar takes, or ``SettingError``, as soon as it is checked.

        A grammar is checked once for all who wait for it, and no longer once all of them have cancelled.
        """
        future: Future[int] = Future()
        with self._changed:
            if (verdict := self._known.get(_key(structure))) is None:
                self._waiting.setdefault(structure, []).append(future)
                self._changed.notify()
                if not self._runs:
                    self._runs = True
                    threading.Thread(target=self._run, name="roseplay-grammar-checks", daemon=True).start()
        if verdict is None:
            future.add_done_callback(partial(self._left, structure))
        else:
            _settle(future, verdict)
        return future

    def _left(self, structure: str, future: Future[int]) -> None:
        with self._changed:
            if structure == self._checking and not self._wanted(structure):
                self._abandoned = True
                self._kill()

    def _wanted(self, structure: str) -> bool:
        return not all(future.cancelled() for future in self._waiting[structure])

    def _run(self) -> None:
        while (structure := self._next()) is not None:
            verdict = self._check(structure)
            with self._changed:
                self._checking = None
                if verdict is None and self._abandoned:
                    continue  # unless somebody came in the meantime, for whom it is checked again
                if verdict is not None:
                    self._known[_key(structure)] = verdict
                    if len(self._known) > _MOST_KNOWN:
                        del self._known[next(iter(self._known))]
                waiting = self._waiting.pop(structure)
            for future in waiting:
                _settle(future, verdict or (0, "could not be checked in time: try again later"))

    def _next(self) -> str | None:
        """Wait for a grammar that is wanted, and return it; ``None``, when the process has ended, after a while without."""
        with self._changed:
            while True:
                for structure in [*self._waiting]:
                    if self._wanted(structure):
                        self._checking, self._abandoned = structure, False
                        return structure
                    del self._waiting[structure]
                if not self._changed.wait(self._idle_s) and not self._waiting:
                    self._close()
                    self._runs = False
                    return None

    def _check(self, structure: str) -> Verdict | None:
        """Returns what the process says of a grammar; ``None`` if it ends or is ended before."""
        late = threading.Timer(self._within_s, self._kill)
        late.daemon = True
        late.start()
        lines = [structure]
        try:
            with self._changed:
                if self._abandoned:
                    return None
                if self._process is None:
                    self._process, lines = self._open(), [self._backend, structure]
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write("".join(json.dumps(line) + "\n" for line in lines).encode())
            self._process.stdin.flush()
            size, problem = json.loads(self._process.stdout.readline())
            return size, problem
        except (OSError, ValueError):
            self._close()
            return None
        finally:
            late.cancel()

    def _open(self) -> subprocess.Popen[bytes]:
        atexit.register(self._kill)
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,  # a terminal's signals are not for it, and it ends together with its child
        )

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _close(self) -> None:
        self._kill()
        atexit.unregister(self._kill)
        if self._process is not None:
            with contextlib.suppress(OSError), self._process:  # waits, and closes its pipes
                pass
            self._process = None


def _key(structure: str) -> bytes:
    return hashlib.sha256(structure.encode(errors="surrogatepass")).digest()


def _settle(future: Future[int], verdict: Verdict) -> None:
    size, problem = verdict
    if not future.set_running_or_notify_cancel():
        return
    if problem is None:
        future.set_result(size)
    else:
        future.set_exception(SettingError(NAME, problem))


_of_tokenizers: weakref.WeakKeyDictionary[Any, GrammarChecks] = weakref.WeakKeyDictionary()
_opening = threading.Lock()


def start_check(structure: str, engine: HasTokenizer) -> Future[int]:
    """Returns the bytes that a grammar takes when it is compiled, once it is checked. May be cancelled.

    Raises:
        SettingError: the engine cannot make answers follow it; also raised by the result.
    """
    info, tokenizer = engine.info, engine.tokenizer
    if info.simulated is not None:
        raise SettingError(NAME, "cannot be simulated, as answers are a fixed text: leave it out")
    with _opening:
        if tokenizer not in _of_tokenizers:
            _of_tokenizers[tokenizer] = GrammarChecks(backend_of(tokenizer, info.vocab_size, info.eos_token_ids))
    return _of_tokenizers[tokenizer].start(structure)


def checked_request(
    prompt: Prompt, params: SamplingParams, engine: HasTokenizer, grammar_bytes: int | None = None
) -> tuple[list[int], int]:
    """Returns the token ids of a prompt, and the bytes that the answer's compiled grammar takes, 0 without one.

    Args:
        grammar_bytes: these bytes, if the grammar is already checked.

    Raises:
        ValueError: the engine could never serve the request.
    """
    token_ids = encode_prompt(prompt, engine.tokenizer, engine.info.vocab_size)
    engine.info.check_fits(len(token_ids), params.max_new_tokens)
    engine.info.check_params(params)
    if params.structured_outputs is None or grammar_bytes is not None:
        return token_ids, grammar_bytes or 0
    check = start_check(params.structured_outputs, engine)
    try:
        return token_ids, check.result()
    finally:
        check.cancel()  # after an interrupt
