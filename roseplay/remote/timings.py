"""How long a server and its replies are waited for."""

from __future__ import annotations

from dataclasses import dataclass

from roseplay.engine.health import OVERDUE_S, STOPPED_S


@dataclass(frozen=True)
class Timings:
    """All in seconds but ``idle_looks``.

    Attributes:
        reply_s: until the whole reply is there to what is asked beside the streams.
        refusal_s: for how long the body of a refusal is read.
        keep_idle_s: how long a connection without use is kept. Shorter than servers wait before they close one: one that is
            closed while a request goes out fails it.
        clear_again_s: between two attempts to clear the cache.
        look_s: between two looks at the server while requests run.
        idle_looks: while none runs, one look in so many asks the server.
        look_reply_s: the same as ``reply_s``, for what a look asks.
        overdue_s: without any sign of life, after which the server is said not to answer.
        stopped_s: without any sign of life, after which its streams end with an error.
    """

    reply_s: float = 10.0
    refusal_s: float = 10.0
    keep_idle_s: float = 2.0
    clear_again_s: float = 0.5
    look_s: float = 0.5
    idle_looks: int = 10
    look_reply_s: float = 1.0
    overdue_s: float = OVERDUE_S
    stopped_s: float = STOPPED_S


USUAL = Timings()
