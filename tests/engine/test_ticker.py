"""A thread that repeats a call: it survives failures, and ends when asked."""

from __future__ import annotations

import logging
import threading

import pytest

from roseplay.engine.ticker import Ticker


def test_a_call_that_fails_is_repeated_and_each_type_of_failure_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes = iter([ValueError(), SystemExit(), None, ValueError()])
    over, ended = threading.Event(), list[str]()

    def tick() -> None:
        outcome = next(outcomes, over)
        if outcome is over:
            over.set()
        elif isinstance(outcome, BaseException):
            raise outcome

    ticker = Ticker("a test's", tick, 0.001, "it failed", at_end=lambda: ended.append("the end"))
    with caplog.at_level(logging.ERROR):
        ticker.start()
        assert over.wait(10)
        assert ticker.close() and ticker.close()
    logged = [(record.message, record.exc_info and record.exc_info[0]) for record in caplog.records]
    assert logged == [("it failed", ValueError), ("it failed", SystemExit)]
    assert ended == ["the end"]
