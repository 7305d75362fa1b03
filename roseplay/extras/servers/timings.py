"""Timeouts and intervals for a server and its replies."""

from __future__ import annotations

from dataclasses import dataclass

from roseplay.engine.health import OVERDUE_S, STOPPED_S


@dataclass(frozen=True)
class Timings:
    """Timeouts and intervals, all in seconds except ``idle_looks``."""

    reply_s: float = 10.0  # timeout for the complete reply to a request other than a stream
    refusal_s: float = 10.0  # how long the body of a refusal is read
    # How long an idle connection is kept. Shorter than servers keep theirs: a request fails if the server closes its
    # connection while it is being sent.
    keep_idle_s: float = 2.0
    clear_again_s: float = 0.5  # time between two attempts to clear the cache
    look_s: float = 0.5  # time between two polls of the server while requests run
    idle_looks: int = 10  # while none runs, the server is asked only at every ``idle_looks``-th poll
    look_reply_s: float = 1.0  # as ``reply_s``, for a poll's requests
    overdue_s: float = OVERDUE_S  # time without any sign of life after which the server is reported as not answering
    stalled_s: float = 10.0  # time without a token, while requests run, after which the server is reported as stuck
    stopped_s: float = STOPPED_S  # time without any sign of life after which its streams end with an error
    steps_reply_s: float = 5.0  # timeout for the replies of a probe that tells the server's steps
    steps_look_s: float = 1.0  # time without a message after which it is asked whether it is there
    steps_again_s: float = 0.5  # time between two times at which it is asked for the server's whole state


USUAL = Timings()
