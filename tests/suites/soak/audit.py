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
    """The result of the comparison: numbers for the table, and the disagreements."""

    figures: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def audit(journal: Journal, watcher: Watcher) -> Audit:
    """Compare, after everything has ended and the watcher has read the last frame.

    Requests that clients know by id must be on the page with the same kind. All others on the page must be chats, whose
    endpoint returns no id: as many as were answered or left. No request ends with ``error``, and only those that a
    client stopped end with ``abort``. Tokens agree for every request whose answer a client can count: read in a lane to
    its end, or requested with a fixed length.
    """
    result = Audit()
    shown, sent = watcher.shown, journal.sent
    chats = {request_id: one for request_id, one in shown.items() if request_id not in sent}
    _identities(result, journal, shown, chats)
    _ends(result, journal, shown, chats)
    _tokens(result, journal, watcher)
    _totals(result, watcher)
    return result


def _identities(result: Audit, journal: Journal, shown: dict[int, Shown], chats: dict[int, Shown]) -> None:
    answered, left = journal.counts["chats answered"], journal.counts["chats left"]
    _equal(result, "requests sent, as clients / page count", len(journal.sent) + answered + left, len(shown))
    _equal(result, "chats answered or left / of no known sender", answered + left, len(chats))
    for kind in ("lane", "burst", "api"):
        of_kind = sum(one.kind == kind for one in journal.sent.values()) + (answered + left) * (kind == "api")
        _equal(result, f"of them {kind}", of_kind, sum(one.kind == kind for one in shown.values()))
    missing = [request_id for request_id in journal.sent if request_id not in shown]
    result.wrong += [
        f"request {request_id} was sent, and the page never showed it" for request_id in missing[:_AT_MOST]
    ]
    result.wrong += [
        f"request {request_id} was sent as {sent.kind} and shown as {shown[request_id].kind}"
        for request_id, sent in journal.sent.items()
        if request_id in shown and shown[request_id].kind != sent.kind
    ][:_AT_MOST]


def _ends(result: Audit, journal: Journal, shown: dict[int, Shown], chats: dict[int, Shown]) -> None:
    reasons = Counter(one.reason for one in shown.values())
    result.figures["ends on the page"] = {str(reason): number for reason, number in sorted(reasons.items(), key=str)}
    wrong: list[str] = []
    unexplained = 0
    for request_id, one in shown.items():
        if one.reason is None:
            wrong.append(f"request {request_id} ({one.kind}) never ended")
        elif one.reason not in (*_WELL, "abort"):
            wrong.append(f"request {request_id} ({one.kind}) ended with {one.reason}: {one.error}")
        elif one.reason == "abort" and not _was_stopped(request_id, one, journal):
            if request_id in chats:
                unexplained += 1
            else:
                wrong.append(f"request {request_id} ({one.kind}) was aborted, and nobody stopped it")
        read = journal.read.get(request_id)
        if read is not None and read.reason != one.reason:
            wrong.append(f"request {request_id} ended with {read.reason} in its lane, {one.reason} on the page")
    left = journal.counts["chats left"]
    if unexplained > left:
        wrong.append(f"{unexplained} chats were aborted, and only {left} clients left")
    result.figures["aborted: explained by a stop / by a client that left / in all"] = [
        reasons["abort"] - unexplained, unexplained, reasons["abort"]
    ]  # fmt: skip
    result.figures["ends read in lanes that agree"] = len(journal.read)
    result.wrong += wrong[:_AT_MOST]


def _was_stopped(request_id: int, one: Shown, journal: Journal) -> bool:
    sent = journal.sent.get(request_id)
    return any(_explains(stop, request_id, one, sent.asked_s if sent else 0.0) for stop in journal.stops)


def _explains(stop: Stop, request_id: int, one: Shown, asked_s: float) -> bool:
    if stop.ids is not None and request_id not in stop.ids:
        return False
    return asked_s <= stop.ended_s and stop.begun_s <= one.seen_finished_s <= stop.ended_s + _ABORT_TAKES_S


def _tokens(result: Audit, journal: Journal, watcher: Watcher) -> None:
    ours = page = exact = lanes = 0
    wrong: list[str] = []
    for request_id, one in watcher.shown.items():
        if one.rows != one.tokens:
            wrong.append(
                f"request {request_id}: the page showed {one.rows} tokens one by one and {one.tokens} at its end"
            )
        sent, read = journal.sent.get(request_id), journal.read.get(request_id)
        if sent is not None and sent.exact is not None and one.reason in _WELL:
            counted, exact = sent.exact, exact + 1
        elif read is not None:
            counted, lanes = read.tokens, lanes + 1
        else:
            if sent is not None and sent.exact is not None and (one.tokens or 0) > sent.exact:
                wrong.append(f"request {request_id}: {one.tokens} tokens, more than the {sent.exact} asked for")
            continue
        ours, page = ours + counted, page + (one.tokens or 0)
        if counted != one.tokens:
            wrong.append(f"request {request_id}: its client counts {counted} tokens, the page {one.tokens}")
        if read is not None and read.tokens != counted:
            wrong.append(f"request {request_id}: asked for {counted} tokens, read {read.tokens} in its lane")
    _equal(
        result,
        f"tokens of {exact} answers of fixed length and {lanes} read in lanes, as clients / page count",
        ours,
        page,
    )
    in_all = sum(one.tokens or 0 for one in watcher.shown.values())
    _equal(result, "tokens of all answers / shown one by one", in_all, watcher.tokens)
    result.wrong += wrong[:_AT_MOST]


def _totals(result: Audit, watcher: Watcher) -> None:
    prompts = sum(one.prompt_tokens for one in watcher.shown.values())
    told = watcher.in_all
    _equal(result, "requests / in the page's totals", len(watcher.shown), told.get("requests"))
    _equal(result, "prompt tokens / in the page's totals", prompts, told.get("prompt_tokens"))
    if told.get("computed", 0) + told.get("saved", 0) > prompts:
        result.wrong.append(f"the page counts more prompt tokens computed and saved than there were: {told}")
    for name in ("running", "waiting", "kv_active"):
        if watcher.stats.get(name):
            result.wrong.append(f"at rest the page says {name} {watcher.stats[name]}")


def _equal(result: Audit, what: str, ours: int, theirs: int | None) -> None:
    result.figures[what] = [ours, theirs]
    if ours != theirs:
        result.wrong.append(f"{what}: {ours} and {theirs}")
