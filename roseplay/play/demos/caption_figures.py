"""The figures in a demo's captions, and what its rings surround, both from the facts of its own bursts.

For each burst with facts, under its name: ``prompts``, ``prompt_tokens``, of these ``computed`` and ``saved``, ``longest``
(its longest step), ``worst`` (the readers' longest pause), ``who_paused`` (as in ``all 4 readers``), ``first_token`` (median),
``last_token`` (longest TTFT), ``gap`` (median of its own answers) and ``reader`` (median of the stories', until its last
first token). If there were any: ``waited_for_batch``, ``waited_for_blocks``, ``preempted``, and ``recomputed`` tokens and
``swapped`` blocks of these. If none was preempted: ``none_preempted``, the word No.

For chats that were asked together, under their name: ``first_token`` (the last one's), ``step`` (median time between two
arrivals) and ``steps`` (of the longest answer); and ``accepted``, the percentage of guessed tokens that were right, if any
were guessed.

Times are texts such as ``60 ms`` or, if they were measured in slow motion, ``60 ms at ×2``. For two bursts, the second is
compared with the first in ``recomputed`` and, if slow motion was the same, in each time that is known of both:
``worst_falls`` or ``worst_rises`` if the difference is clear, as in ``17 ms instead of 60 ms``, otherwise ``worst_same``, as
in ``17 and 18 ms``; with the first two, also ``worst_sooner`` or ``worst_later``, the word itself. The chats ``before`` and
``after`` are compared likewise, as ``chats_first_token_falls`` and so on, also in ``steps``; ``chats_same`` is their number
if all answers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from roseplay.formats.numbers import many, slowed_text, told_text, whole
from roseplay.play.bursts import Burst
from roseplay.play.demos.asked import ChatFacts
from roseplay.play.demos.script import Place
from roseplay.play.story.burst_facts import BurstFacts
from roseplay.recording.frame import Ring
from roseplay.traffic.difference import difference

Facts = BurstFacts | ChatFacts


def figures_of_sent(burst: Burst) -> dict[str, str]:
    """Returns the figures of a burst that was just sent: ``size``, and ``long_prompt``, the tokens of its longest."""
    longest = max((tracked.prompt_tokens for tracked in burst.requests), default=0)
    return {"size": whole(len(burst.requests)), **({"long_prompt": whole(longest)} if longest else {})}


def figures_of(bursts: Mapping[str, BurstFacts], chats: Mapping[str, ChatFacts] | None = None) -> dict[str, str]:
    """Returns figures by the names of burst or chats and figure, such as ``first_longest``."""
    facts: dict[str, Facts] = {**bursts, **(chats or {})}
    figures = {f"{name}_{figure}": text for name, one in facts.items() for figure, text in _of_one(one).items()}
    if len(bursts) >= 2:
        figures |= _changes(*list(bursts.values())[:2])
    if chats and "before" in chats and "after" in chats:
        before, after = chats["before"], chats["after"]
        figures |= {f"chats_{name}": text for name, text in _changes(before, after).items()}
        if before.texts == after.texts:
            figures["chats_same"] = whole(len(after.texts))
    return figures


def _times(facts: Facts) -> dict[str, float | None]:
    """Returns the times in ms."""
    if isinstance(facts, ChatFacts):
        return {"first_token": facts.first_token, "step": facts.step}
    return {
        "first_token": facts.ttft_p50,
        "last_token": facts.ttft_last,
        "longest": facts.longest.ms if facts.longest else None,
        "worst": facts.worst.ms if facts.worst else None,
        "gap": facts.own_gap_ms,
        "reader": facts.reader_gap_ms,
    }


def _of_one(facts: Facts) -> dict[str, str]:
    """Returns the figures that are known, as text."""
    slow = slowed_text(facts.factors)
    times = {name: f"{told_text(ms)} ms{slow}" for name, ms in _times(facts).items() if ms is not None}
    counts, words = _of_chats(facts) if isinstance(facts, ChatFacts) else _of_burst(facts)
    return times | {name: whole(count) for name, count in counts.items() if count is not None} | words


def _of_burst(facts: BurstFacts) -> tuple[dict[str, float | None], dict[str, str]]:
    """Returns its counts and what else is told of it, in words."""
    counts: dict[str, float | None] = {
        "prompts": facts.prompts,
        "prompt_tokens": facts.prompt_tokens,
        "computed": facts.prompt_tokens - facts.saved_tokens,
        "saved": facts.saved_tokens,
        "preempted": facts.preempted or None,
        "recomputed": facts.recomputed or None,
        "swapped": facts.swapped or None,
    }
    if facts.waited_for:
        counts[f"waited_for_{facts.waited_for}"] = facts.waited or None
    words = {} if facts.preempted else {"none_preempted": "No"}
    if facts.paused:
        share = "all" if facts.paused == facts.streaming else f"{whole(facts.paused)} of"
        words["who_paused"] = f"{share} {whole(facts.streaming)} readers" if facts.streaming > 1 else "the reader"
    return counts, words


def _of_chats(facts: ChatFacts) -> tuple[dict[str, float | None], dict[str, str]]:
    return {"steps": facts.steps, "accepted": 100 * facts.accepted / facts.drafted if facts.drafted else None}, {}


def _changes(first: Facts, second: Facts) -> dict[str, str]:
    """Returns for each count, and each time under the same slow motion, that is known how the second differs from the first."""
    counts = [
        {"steps": it.steps} if isinstance(it, ChatFacts) else {"recomputed": it.recomputed} for it in (first, second)
    ]
    changes = _differences(counts[0], counts[1], "", "")
    if first.factors == second.factors and len(first.factors) == 1:
        changes |= _differences(_times(first), _times(second), " ms", slowed_text(first.factors))
    return changes


def _differences(
    first: Mapping[str, float | None], second: Mapping[str, float | None], unit: str, slow: str
) -> dict[str, str]:
    changes = {}
    for name, before in first.items():
        after = second[name]
        if before is None or after is None:
            continue
        verdict = difference([before], [after], better="lower").verdict
        if verdict == "within":
            changes[f"{name}_same"] = f"{told_text(before)} and {told_text(after)}{unit}{slow}"
        else:
            change = "falls" if verdict == "better" else "rises"
            changes[f"{name}_{change}"] = f"{told_text(after)}{unit} instead of {told_text(before)}{unit}{slow}"
            order = "sooner" if verdict == "better" else "later"
            changes[f"{name}_{order}"] = order
    return changes


def ring(target: Place, facts_by_name: Mapping[str, Facts]) -> Ring | None:
    """Returns what a ring surrounds, for the page; ``None`` if there is no such thing."""
    if isinstance(target, str):
        return {"of": "element", "id": target}
    kind, name = target
    if (facts := facts_by_name.get(name)) is None:
        return None
    if isinstance(facts, ChatFacts):
        figures = _of_one(facts)
        figure, words = ("steps", "{} steps") if kind == "steps" else ("first_token", "first tokens after up to {}")
        label = words.format(figures[figure]) if figure in figures else ""
        return {"of": "rows", "requests": list(facts.requests), "label": label}
    if kind == "gap":
        if (gap := facts.worst) is None:
            return None
        label = f"a pause of {told_text(gap.ms)} ms{slowed_text(facts.factors)}"
        return {"of": "gap", "request": gap.request_id, "step": gap.step_id, "label": label}
    if kind == "step":
        if (step := facts.longest) is None:
            return None
        return {"of": "step", "step": step.step_id, "label": f"{whole(step.prompt_tokens)} prompt tokens in one step"}
    if kind == "preempted":
        label = f"{many(facts.preempted, 'answer')} preempted"
        return {"of": "preempted", "burst": facts.burst, "label": label} if facts.preempted else None
    if kind == "rows":
        return {"of": "rows", "burst": facts.burst, "label": many(facts.prompts, "prompt")}
    return {"of": "element", "id": kind, "t": facts.done}
