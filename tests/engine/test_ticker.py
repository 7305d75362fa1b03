"""A thread that repeats a call: it survives failures, and ends when asked."""

from __future__ import annotations

import logging
import threading

import pytest

from roseplay.engine.ticker import Ticker


def test_a_call_that_fails_is_repeated_and_logged_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = iter([ValueError(), SystemExit(), None, KeyError()])
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
    assert [record.message for record in caplog.records] == ["it failed", "it failed"], (
        "a failure after a success is another one"
    )
    assert ended == ["the end"]
