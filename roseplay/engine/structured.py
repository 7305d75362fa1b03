"""Structured output: the client checks a request's grammar before it is submitted; its worker compiles it in a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from roseplay.config import EngineConfig, SamplingParams, SettingError
from roseplay.core.info import EngineInfo
from roseplay.engine.messages import Abort, Command, Submit
from roseplay.engine.slow_motion import Inbox

if TYPE_CHECKING:
    from roseplay.model.grammar import Grammars, Matcher

LOOK_S = 0.002  # interval at which an idle worker looks whether a grammar is compiled


def check_structure(params: SamplingParams, tokenizer: Any, info: EngineInfo) -> None:
    """Raises ``SettingError`` if an engine with this tokenizer cannot make answers follow ``params.structured_outputs``."""
    if params.structured_outputs is None:
        return
    if info.simulated is not None:
        raise SettingError("structured_outputs", "cannot be simulated, as answers are a fixed text: leave it out")

    from roseplay.model.grammar import grammars_of

    grammars_of(tokenizer, info.vocab_size, info.eos_token_ids).matcher(params.structured_outputs)


class Compiler:
    """Compiles grammars in a thread; those that it has compiled before take no time.

    Args:
        model, config, info: of the engine, to open the tokenizer for the first grammar.
    """

    def __init__(self, model: Any, config: EngineConfig, info: EngineInfo) -> None:
        self._model, self._config, self._info = model, config, info
        self._grammars: Grammars | None = None
        self._thread = ThreadPoolExecutor(1, "roseplay-grammars")  # starts when it is needed

    def start(self, structure: str) -> Future[Matcher]:
        """Returns a matcher for an answer that follows ``structure``, as soon as it is compiled."""
        if self._grammars is None or structure not in self._grammars:
            with suppress(RuntimeError):  # while the program ends, threads take no more work
                return self._thread.submit(self._compile, structure)
        done: Future[Matcher] = Future()
        done.set_result(self._compile(structure))
        return done

    def _compile(self, structure: str) -> Matcher:
        from roseplay.model.grammar import grammars_of
        from roseplay.model.tokenizer import load_tokenizer

        if self._grammars is None:
            tokenizer = load_tokenizer(self._model, self._config)
            self._grammars = grammars_of(tokenizer, self._info.vocab_size, self._info.eos_token_ids)
        return self._grammars.matcher(structure)


class CompilingInbox:
    """An inbox that keeps requests until their grammars are compiled, so that no step waits for a large one.

    Args:
        inbox: where the commands come from.
        start: see ``Compiler``.
    """

    def __init__(self, inbox: Inbox, start: Callable[[str], Future[Matcher]]) -> None:
        self._inbox, self._start = inbox, start
        self._kept: dict[int, tuple[Submit, Future[Matcher]]] = {}

    def take(self, timeout: float | None) -> list[Command]:
        """See ``Inbox``; may return nothing before the time is over."""
        while True:
            wait = timeout if not self._kept else LOOK_S if timeout is None else min(timeout, LOOK_S)
            passed: list[Command] = []
            for command in self._inbox.take(wait):
                if isinstance(command, Submit) and command.sampling.structured_outputs is not None:
                    self._kept[command.request_id] = command, self._start(command.sampling.structured_outputs)
                    continue
                if isinstance(command, Abort) and command.request_id in self._kept:
                    passed.append(self._kept.pop(command.request_id)[0])  # it is added only to be ended
                passed.append(command)
            for submit, compiled in [*self._kept.values()]:
                if compiled.done():
                    submit.compiled = compiled
                    passed.append(self._kept.pop(submit.request_id)[0])
            if passed or timeout is not None:
                return passed
