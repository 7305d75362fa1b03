"""Compares what the page reported with what the clients know: every request, every countable token, every end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.suites.soak.journal import Journal, Stop
from tests.suites.soak.watcher import Shown, Watcher

_WELL = ("stop", "length")
_ABORT_TAKES_S = 15.0  # from the end of the stopping call until the page's report of the end is read
_AT_MOST = 20  # complaints of each kind


@dataclass
class Audit:
    """The result of the comparison: numbers for the table, as clients and page count them, and the disagreements."""

    figures: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def compare(self, what: str, clients: int, page: int | None) -> None:
        self.figures[what] = [clients, page]
        if clients != page:
            self.wrong.append(f"{what}: {clients} and {page}")


def audit(journal: Journal, watcher: Watcher) -> Audit:
    """Compare, after everything has ended and the watcher has read the last frame.

    Requests that clients know by id must be on the page with the same kind. All others on the page must be chats, whose
    endpoint returns no id: as many as were answered or left. No request ends with ``error``, and only those that a
    client stopped end with ``abort``. Tokens agree for every request whose answer a client can count: read in a lane to
    its end, or requested with a fixed length.
    """
    result = Audit()
    _identities(result, journal, watcher.shown)
    _ends(result, journal, watcher.shown)
    _tokens(result, journal, watcher)
    _totals(result, watcher)
    return result


def _identities(result: Audit, journal: Journal, shown: dict[int, Shown]) -> None:
    chats = journal.counts["chats answered"] + journal.counts["chats left"]
    result.compare("requests sent", len(journal.sent) + chats, len(shown))
    result.compare("chats answered or left, and requests of no known sender", chats, len(shown.keys() - journal.sent))
    wrong = []
    for request_id, sent in journal.sent.items():
        kind = shown[request_id].kind if request_id in shown else None
        if kind != sent.kind:
            wrong.append(f"request {request_id} was sent as {sent.kind} and shown as {kind}")
    wrong += [
        f"request {request_id} was not sent by a client that knows its id, and is shown as {one.kind}"
        for request_id, one in shown.items()
        if request_id not in journal.sent and one.kind != "api"
    ]
    result.wrong += wrong[:_AT_MOST]


def _ends(result: Audit, journal: Journal, shown: dict[int, Shown]) -> None:
    reasons = Counter(str(one.reason) for one in shown.values())
    result.figures["ends on the page"] = dict(sorted(reasons.items()))
    wrong: list[str] = []
    unexplained = 0
    for request_id, one in shown.items():
        if one.reason not in (*_WELL, "abort"):
            wrong.append(f"request {request_id} ({one.kind}) ended with {one.reason}: {one.error}")
        elif one.reason == "abort" and not _was_stopped(request_id, one, journal):
            if request_id not in journal.sent:
                unexplained += 1
            else:
                wrong.append(f"request {request_id} ({one.kind}) was aborted, and nobody stopped it")
        _, reason = journal.read.get(request_id, (0, one.reason))
        if reason != one.reason:
            wrong.append(f"request {request_id} ended with {reason} in its lane, {one.reason} on the page")
    left = journal.counts["chats left"]
    if unexplained > left:
        wrong.append(f"{unexplained} chats were aborted, and only {left} clients left")
    result.wrong += wrong[:_AT_MOST]


def _was_stopped(request_id: int, one: Shown, journal: Journal) -> bool:
    sent = journal.sent.get(request_id)
    return any(_explains(stop, request_id, one, sent.asked_s if sent else 0.0) for stop in journal.stops)


def _explains(stop: Stop, request_id: int, one: Shown, asked_s: float) -> bool:
    if stop.ids is not None and request_id not in stop.ids:
        return False
    return asked_s <= stop.ended_s and stop.begun_s <= one.seen_finished_s <= stop.ended_s + _ABORT_TAKES_S


def _tokens(result: Audit, journal: Journal, watcher: Watcher) -> None:
    clients = page = 0
    wrong: list[str] = []
    for request_id, one in watcher.shown.items():
        tokens = one.tokens or 0
        if one.rows != one.tokens:
            wrong.append(f"request {request_id}: the page showed {one.rows} tokens, and {one.tokens} at its end")
        sent, read = journal.sent.get(request_id), journal.read.get(request_id)
        exact = sent.exact if sent is not None else None
        if exact is not None and tokens != exact and (one.reason in _WELL or tokens > exact):
            wrong.append(f"request {request_id}: asked for {exact} tokens, which ignore the end, and got {tokens}")
        if read is not None and read[0] != one.tokens:
            wrong.append(f"request {request_id}: {read[0]} tokens read in its lane, the page counts {one.tokens}")
        if read is not None:
            clients, page = clients + read[0], page + tokens
    result.compare(f"tokens of {len(journal.read)} answers read in lanes", clients, page)
    in_all = sum(one.tokens or 0 for one in watcher.shown.values())
    result.compare("tokens of all answers at their ends, and one by one", in_all, watcher.tokens)
    result.wrong += wrong[:_AT_MOST]


def _totals(result: Audit, watcher: Watcher) -> None:
    prompts = sum(one.prompt_tokens for one in watcher.shown.values())
    told = watcher.in_all
    result.compare("requests shown, and in the page's totals", len(watcher.shown), told.get("requests"))
    result.compare("prompt tokens shown, and in the page's totals", prompts, told.get("prompt_tokens"))
    if told.get("computed", 0) + told.get("saved", 0) > prompts:
        result.wrong.append(f"the page counts more prompt tokens computed and saved than there were: {told}")
    for name in ("running", "waiting", "kv_active"):
        if watcher.stats.get(name):
            result.wrong.append(f"at rest the page says {name} {watcher.stats[name]}")
