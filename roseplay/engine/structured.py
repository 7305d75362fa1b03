"""Structured output in a worker: grammars are compiled in a thread. ``grammar_checks.py`` has what clients check before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from roseplay.config import EngineConfig
from roseplay.core.info import EngineInfo
from roseplay.engine.messages import Command, End, Submit
from roseplay.engine.slow_motion import Inbox
from roseplay.model.grammar import Backend, Grammars, Matcher, backend_of

LOOK_S = 0.002  # interval at which an idle worker looks whether a grammar is compiled


def grammars_of(model: Any, config: EngineConfig, info: EngineInfo) -> Grammars:
    """Returns the grammars of an engine, which open its tokenizer for the first one."""

    def backend() -> Backend:
        from roseplay.model.tokenizer import load_tokenizer

        return backend_of(load_tokenizer(model, config), info.vocab_size, info.eos_token_ids)

    return Grammars(backend)


class CompilingInbox:
    """An inbox that keeps requests until their grammars are compiled, so that no step waits for a large one.

    Args:
        inbox: where the commands come from.
        start: see ``Grammars``.
    """

    def __init__(self, inbox: Inbox, start: Callable[[str, int], Future[Matcher]]) -> None:
        self._inbox, self._start = inbox, start
        self._kept: dict[int, tuple[Submit, Future[Matcher]]] = {}

    def take(self, timeout: float | None) -> list[Command]:
        """See ``Inbox``; may return nothing before the time is over."""
        while True:
            wait = timeout if not self._kept else LOOK_S if timeout is None else min(timeout, LOOK_S)
            passed: list[Command] = []
            for command in self._inbox.take(wait):
                if isinstance(command, Submit) and command.sampling.structured_outputs is not None:
                    compiled = self._start(command.sampling.structured_outputs, command.grammar_bytes)
                    self._kept[command.request_id] = command, compiled
                    continue
                if isinstance(command, End) and command.request_id in self._kept:
                    submit, compiled = self._kept.pop(command.request_id)
                    compiled.cancel()
                    passed.append(submit)  # it is added only to be ended
                passed.append(command)
            for submit, compiled in [*self._kept.values()]:
                if compiled.done():
                    submit.compiled = compiled
                    passed.append(self._kept.pop(submit.request_id)[0])
            if passed or timeout is not None:
                return passed
