"""A replica's failures: what a client is told of them, and whether another replica may take the request."""

from __future__ import annotations

from roseplay.formats.text import one_line

# A request that ends its replica, by a fault that it alone meets, should not end all of them one after the other.
MOST_SENDINGS = 3
_LOST = ("ActorDiedError", "ActorUnavailableError", "ReplicaUnavailableError")


def what_failed(error: BaseException) -> str:
    """Returns one line on why a replica did not answer."""
    if type(error).__name__ in _LOST:
        return "the replica that computed the answer has died: send the request again"
    cause = _cause(error)
    return one_line(f"{type(cause).__name__}: {cause}".strip().split("\n")[-1])


def may_be_sent_again(error: BaseException, sendings: int, tokens: int) -> bool:
    """Returns whether a request that failed with ``error`` may be sent to another replica.

    Args:
        sendings: how often it has been sent.
        tokens: how many tokens have come; a client may have seen them, and another replica might choose others.
    """
    mistake = isinstance(_cause(error), ValueError | TypeError)  # of the client, as every replica would find
    return tokens == 0 and sendings < MOST_SENDINGS and not mistake


def _cause(error: BaseException) -> BaseException:
    """Returns the exception of the replica, which Ray wraps."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
