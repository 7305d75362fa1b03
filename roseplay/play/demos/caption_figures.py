"""The figures in a demo's captions, and what its rings surround, both from the facts of its own bursts.

For each burst with facts, under its name: ``prompts``, ``computed`` (prompt tokens), ``saved_percent``, ``longest`` (its
longest step), ``worst`` (the stories' longest pause), ``who_paused`` (as in ``all 4 stories``), ``first_token`` (median),
``last_token`` (p95 of TTFT), ``gap`` (median of its own answers) and ``reader`` (median of the stories', until its last
first token). If there were any: ``waited_for_batch``, ``waited_for_blocks``, ``preempted``, and ``recomputed`` tokens and
``swapped`` blocks of these. If none was preempted: ``none_preempted``, the word No.

Times are texts such as ``60 ms`` or, if they were measured in slow motion, ``60 ms at ×2``.

For two bursts, the second compared with the first, if both values are known and slow motion was the same: one of
``pause_falls``, ``pause_rises`` and ``pause_same``, for the effect of a large step on the stories (``BurstFacts.pause``), and
likewise for ``first_token``, ``last_token``, ``gap`` and ``reader``. One of the first two is present if the difference is
clear, as in ``17 ms instead of 60 ms``, otherwise the third, as in ``17 and 18 ms``.

For chats that were asked together, under their name: ``first_token`` (median), ``token`` (median time of a token after the
first), ``steps`` (of the longest answer), ``prompt``, ``cached`` and ``computed`` tokens; if none was cached,
``none_cached``, the word None; ``per_step`` (tokens); and ``accepted``, the percentage of guessed tokens that were right, if
any were guessed. For the chats ``before`` and ``after``: ``chats_first_token_falls`` and so on, likewise ``chats_token`` and
``chats_step`` (median time between two arrivals), and ``chats_same``, their number, if all answers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roseplay.formats.numbers import slowed_text, whole
from roseplay.play.bursts import Burst
from roseplay.play.demos.asked import ChatFacts
from roseplay.play.demos.script import Ring
from roseplay.play.story.burst_facts import BurstFacts
from roseplay.traffic.difference import difference

Values = Mapping[str, float | None]
Facts = BurstFacts | ChatFacts


def figures_of_sent(burst: Burst) -> dict[str, str]:
    """Returns the figures of a burst that was just sent: ``size``, and ``long_prompt``, the tokens of its longest."""
    longest = max((tracked.prompt_tokens for tracked in burst.requests), default=0)
    return {"size": whole(len(burst.requests)), **({"long_prompt": whole(longest)} if longest else {})}


def figures_of(bursts: Mapping[str, BurstFacts], chats: Mapping[str, ChatFacts] | None = None) -> dict[str, str]:
    """Returns figures by the names of burst or chats and figure, such as ``first_longest``."""
    found: dict[str, str] = {}
    for name, facts in bursts.items():
        found.update({f"{name}_{figure}": value for figure, value in _of_one(facts).items()})
    if len(bursts) >= 2:
        first, second = list(bursts.values())[:2]
        found.update(_of_two(first, second))
    for name, asked in (chats or {}).items():
        found.update({f"{name}_{figure}": value for figure, value in _of_chats(asked).items()})
    if chats and "before" in chats and "after" in chats:
        found.update(_of_chats_twice(chats["before"], chats["after"]))
    return found


def _of_one(facts: BurstFacts) -> dict[str, str]:
    counts = {
        "prompts": facts.prompts,
        "computed": facts.prompt_tokens - facts.saved_tokens,
        "saved_percent": 100 * facts.saved,
        "preempted": facts.preempted or None,
        "recomputed": facts.recomputed or None,
        "swapped": facts.swapped or None,
    }
    times = {
        "first_token": facts.ttft_p50,
        "last_token": facts.ttft_p95,
        "longest": facts.longest.ms if facts.longest else None,
        "worst": facts.worst.ms if facts.worst else None,
        "gap": facts.own_gap_ms,
        "reader": facts.reader_gap_ms,
    }
    found = _texts(counts, times, facts)
    if not facts.preempted:
        found["none_preempted"] = "No"
    if facts.waited and facts.waited_for:
        found[f"waited_for_{facts.waited_for}"] = whole(facts.waited)
    if facts.paused:
        of = "all" if facts.paused == facts.streaming else f"{whole(facts.paused)} of"
        found["who_paused"] = f"{of} {whole(facts.streaming)} stories" if facts.streaming > 1 else "the story"
    return found


def _of_two(first: BurstFacts, second: BurstFacts) -> dict[str, str]:
    pairs: dict[str, tuple[float | None, float | None]] = {
        "pause": (_pause(first), _pause(second)),
        "first_token": (first.ttft_p50, second.ttft_p50),
        "last_token": (first.ttft_p95, second.ttft_p95),
        "gap": (first.own_gap_ms, second.own_gap_ms),
        "reader": (first.reader_gap_ms, second.reader_gap_ms),
    }
    return _changes(pairs, first, second)


def _of_chats(facts: ChatFacts) -> dict[str, str]:
    counts = {"steps": facts.steps, "prompt": facts.prompt, "cached": facts.cached, "computed": facts.computed}
    found = _texts(counts, {"first_token": facts.first_token, "token": facts.token}, facts)
    if facts.per_step is not None:
        found["per_step"] = f"{facts.per_step:.1f}"
    if not facts.cached:
        found["none_cached"] = "None"
    if facts.drafted:
        found["accepted"] = whole(100 * facts.accepted / facts.drafted)
    return found


def _of_chats_twice(before: ChatFacts, after: ChatFacts) -> dict[str, str]:
    pairs = {
        "chats_first_token": (before.first_token, after.first_token),
        "chats_token": (before.token, after.token),
        "chats_step": (before.step, after.step),
    }
    same = {"chats_same": whole(len(after.texts))} if before.texts == after.texts else {}
    return {**_changes(pairs, before, after), **same}


def _texts(counts: Values, times: Values, facts: Facts) -> dict[str, str]:
    """Returns those of the counts and of the times in ms that are known."""
    known = {name: f"{whole(ms)} ms{slowed_text(facts.factors)}" for name, ms in times.items() if ms is not None}
    return known | {name: whole(count) for name, count in counts.items() if count is not None}


def _changes(pairs: Mapping[str, tuple[float | None, float | None]], first: Facts, second: Facts) -> dict[str, str]:
    """Returns for each pair of times in ms that are known how the second differs from the first, if slow motion does not."""
    found: dict[str, str] = {}
    if first.factors != second.factors or len(first.factors) > 1:
        return found
    unit = f"ms{slowed_text(first.factors)}"
    for name, (before, after) in pairs.items():
        verdict = difference([before], [after], better="lower").verdict
        if before is None or after is None:
            continue
        if verdict == "within":
            found[f"{name}_same"] = f"{whole(before)} and {whole(after)} {unit}"
        else:
            change = "falls" if verdict == "better" else "rises"
            found[f"{name}_{change}"] = f"{whole(after)} ms instead of {whole(before)} {unit}"
    return found


def _pause(facts: BurstFacts) -> float | None:
    return facts.pause.ms if facts.pause else None


def ring(target: Ring, bursts: Mapping[str, BurstFacts]) -> dict[str, Any] | None:
    """Returns what a ring surrounds, for the page; ``None`` if there is no such thing."""
    if isinstance(target, str):
        return {"of": "element", "id": target}
    of, name = target
    facts = bursts.get(name)
    if of == "gap" and facts and facts.pause:
        gap = facts.pause
        label = f"a pause of {whole(gap.ms)} ms{slowed_text(facts.factors)}"
        return {"of": of, "request": gap.request_id, "step": gap.step_id, "label": label}
    if of == "step" and facts and facts.longest:
        step = facts.longest
        return {"of": of, "step": step.step_id, "label": f"{whole(step.prompt_tokens)} prompt tokens in one step"}
    return None
