"""What is found out about runs drawn at random, against a simple computation from all of their events at once."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import pytest

from roseplay.config import SETTINGS, Knobs
from roseplay.engine.records import EntryRecord, StepRow, TokenRow
from roseplay.play.story.burst_facts import BurstFacts, Gap, LongestStep
from roseplay.play.story.caption import figures_in
from roseplay.play.story.pair import before_and_after, burst_pair, comparable
from roseplay.play.story.steady_facts import SteadyFacts, SteadyWatch
from roseplay.play.story.words import changed_settings, compared, how_it_goes, named_change, what_happened
from roseplay.recording.run import Run as TrackedRun
from roseplay.traffic.metrics import percentile
from tests.play.test_story import A_BURST, KNOBS, StoryOfFrames, figures, frame, submitted

ARRIVED, END = 10_000, 16_000  # ms; a burst arrives, and no more happens
# Between tokens, with the shortest gap that is a pause and the longest that is none, where the first ones are usual
# (8 and 9, 20 and 21) or the usual gap is not known (200 and 201).
GAPS = [
    (3, 3, 4, 8, 9, 13, 90),
    (10, 10, 10, 19, 20, 21, 90),
    (5, 5, 5, 200, 201),
    (5, 6, 11, 20, 21, 40, 190, 205, 900),
]


@dataclass
class Run:
    """The events of a run in the order of their times, which are whole ms; only settings change at ``ARRIVED`` itself."""

    knobs: dict[str, Any]
    events: list[tuple[float, str, Any]] = field(default_factory=list)  # time, list of a frame, row
    readers: dict[int, tuple[float, float]] = field(default_factory=dict)  # first token, and end
    own: dict[int, dict[str, Any]] = field(default_factory=dict)
    gaps: tuple[int, ...] = ()  # between tokens

    def rows(self, kind: str, after: float = -math.inf, until: float = math.inf) -> list[Any]:
        return [row for t, name, row in self.events if name == kind and after < t <= until]

    def frames(self, draw: random.Random) -> list[dict[str, Any]]:
        """Frames of it; the burst arrives at the beginning of one."""
        cuts = sorted({*draw.sample(range(100, END), 40), ARRIVED - 1, END + 1})
        kinds = ("requests", "steps", "tokens", "knobs")
        return [
            frame(end, burst=figures(size=len(self.own)) if end >= ARRIVED else None,
                  **{kind: self.rows(kind, begin, end) for kind in kinds})
            for begin, end in zip([0, *cuts], cuts, strict=False)
        ]  # fmt: skip


def drawn(draw: random.Random) -> Run:
    run = Run({**KNOBS, "slow_motion": draw.choice([1.0, 1.0, 5.0])})
    run.gaps = draw.choice(GAPS)
    reasons = draw.choice([("stop", "length"), ("stop", "length"), ("length", "abort")])
    for reader in range(1, draw.randint(0, 4) + 1):
        first, end = draw.randint(6_000, 10_500), draw.choice([draw.randint(9_000, END), END + 500])
        run.readers[reader] = first, max(first + 1, end)
    for own in range(20, 20 + draw.randint(1, 9)):
        first = draw.randint(ARRIVED + 50, 14_000)
        run.own[own] = {"prompt": draw.randint(1, 500), "first": first, "end": draw.randint(first, END),
                        "reason": draw.choice(reasons), "cached": draw.choice([0, 16, 64]), "shared": draw.choice([0, 32])}  # fmt: skip
    _add_requests(run)
    for request, (first, end) in {
        **run.readers,
        **{i: (one["first"], one["end"]) for i, one in run.own.items()},
    }.items():
        _add_tokens(draw, run, request, first, min(end, END))
    _add_steps(draw, run)
    for change in range(draw.choice([0, 0, 1, 2])):
        t, factor = (
            draw.choice([draw.randint(7_000, 9_900), ARRIVED, draw.randint(10_100, END)]),
            draw.choice([2.0, 3.0]),
        )
        what = draw.choice([{"slow_motion": [run.knobs["slow_motion"], factor]}, {"max_batch_size": [32, 40 + change]}])
        run.events.append((t, "knobs", [t, change, what]))
    run.events.sort(key=lambda event: event[0])
    knobs = dict(run.knobs)
    for _, _, what in run.rows("knobs"):
        what.update({name: [knobs[name], new] for name, (_, new) in what.items()})
        knobs.update({name: new for name, (_, new) in what.items()})
    return run


def _add_requests(run: Run) -> None:
    for reader, (first, end) in run.readers.items():
        rows = [submitted(reader, first - 50), [reader, "first", first, {"ttft_ms": 50}]]
        rows += [[reader, "finished", end, {"reason": "length", "ttft_ms": 50}]] if end <= END else []
        run.events += [(row[2], "requests", row) for row in rows]
    for own, one in run.own.items():
        ttft = {"ttft_ms": one["first"] - ARRIVED}
        rows = [submitted(own, ARRIVED, kind="burst", burst=1, prompt_tokens=one["prompt"]), [own, "first", one["first"], ttft],
                [own, "finished", one["end"], {"reason": one["reason"], **ttft}]]  # fmt: skip
        run.events += [(row[2], "requests", row) for row in rows]


def _add_tokens(draw: random.Random, run: Run, request: int, first: int, end: int) -> None:
    t, some = first, run.gaps[: draw.randint(3, len(run.gaps))]
    while (t := t + draw.choice(some)) <= end:
        if t != ARRIVED:
            gaps = [float(t - first), *[0.0] * draw.choice([0, 0, 0, 2])]
            run.events += [(t, "tokens", TokenRow(request, t, gap, 0)) for gap in gaps]
            first = t


def _add_steps(draw: random.Random, run: Run) -> None:
    for number, t in enumerate(sorted(draw.sample(range(ARRIVED + 1, 14_500), 8)), 1):
        drafts = draw.choice([0, 0, 4])
        entries = [
            EntryRecord(i, *draw.choice([(draw.choice([1, 1, 90]), 0), (0, draw.randint(1, 5))]), 0, 0, run.own[i]["cached"],
                        run.own[i]["shared"])
            for i in draw.sample([*run.own], draw.randint(0, len(run.own)))
        ]  # fmt: skip
        row = StepRow(number, t0=t - draw.choice([3, 50, 50, 400]), t1=t, entries=entries, draft_tokens=drafts,
                      prompt_tokens=sum(one.prompt_tokens for one in entries), limit=draw.choice(["blocks", "batch", "decode"]),
                      preempted=draw.sample([*run.own, *run.readers], draw.choice([0, 0, 1])),
                      recomputed_tokens=draw.choice([0, 7]), swapped_out=draw.choice([0, 3]))  # fmt: skip
        run.events.append((t, "steps", row))
    early = StepRow(0, t0=9_000, t1=ARRIVED - 5, preempted=[1], recomputed_tokens=9, swapped_out=9, limit="blocks")
    run.events.append((early.t1, "steps", early))


def found(run: Run, until: float) -> BurstFacts:
    """The facts of the burst from what happened until a time."""
    own, ended = run.own, max(one["end"] for one in run.own.values())
    streaming = {i for i, (first, end) in run.readers.items() if first < ARRIVED < end}
    changes = run.rows("knobs", ARRIVED - 1, until)
    knobs = dict(run.knobs)
    slowed_at = -math.inf
    for t, _, what in run.rows("knobs", until=ARRIVED):
        knobs.update({name: new for name, (_, new) in what.items()})
        slowed_at = t if "slow_motion" in what else slowed_at
    factors = {knobs["slow_motion"], *(what["slow_motion"][1] for *_, what in changes if "slow_motion" in what)}
    before = [token for token in run.rows("tokens", until=ARRIVED) if token.itl_ms]
    usual = [token.itl_ms for token in before if token.t - token.itl_ms >= slowed_at]
    usual_ms = median(usual[-256:]) if usual and len(factors) == 1 else None
    done = max(one["first"] for one in own.values())
    after = [token for token in run.rows("tokens", ARRIVED, until) if token.itl_ms]
    here = [token for token in after if token.t - token.itl_ms < done]
    readers = [token for token in here if token.request_id in streaming]
    others = [token.itl_ms for token in here if token.request_id not in streaming]
    mine = [token for token in after if token.request_id in own]
    recent = [token for token in before if token.t >= ARRIVED - 3000]
    around = [token for token in recent if token.request_id in streaming]
    around += [token for token in after if token.request_id in streaming and token.t - token.itl_ms >= done]
    steps = run.rows("steps", ARRIVED, until)
    entries = [(step, entry) for step in steps for entry in step.entries if entry.request_id in own]
    scheduled = {entry.request_id for _, entry in entries}
    computing = list(dict.fromkeys(step.step_id for step, entry in entries if entry.prompt_tokens))
    longest = max(
        (step for step in steps if step.step_id in computing), key=lambda step: step.t1 - step.t0, default=None
    )
    waited = {limit: set[int]() for limit in ("blocks", "batch")}
    for step in steps:
        if step.limit in waited:
            begun = {entry.request_id for one, entry in entries if one.step_id <= step.step_id}
            waited[step.limit] |= own.keys() - begun
    waited_for = "batch" if len(waited["batch"]) > len(waited["blocks"]) else "blocks"
    saved = sorted(one["cached"] + one["shared"] if i in scheduled else 0 for i, one in own.items())
    ttft = sorted(float(one["first"] - ARRIVED) for one in own.values())
    shown = readers if streaming else mine
    answered = all(one["reason"] in ("stop", "length") for one in own.values())
    tokens = len(run.rows("tokens", ARRIVED, ended))
    worst = max(readers, key=lambda token: token.itl_ms, default=None)
    return BurstFacts(
        burst=1, kind="mix", seed=7, answer=64, knobs=knobs, undisturbed=not changes, arrived=ARRIVED, done=done, ended=ended,
        prompts=len(own), prompt_tokens=sum(one["prompt"] for one in own.values()), saved_tokens=sum(saved),
        cached_tokens=sum(own[i]["cached"] for i in scheduled), shared_head=saved[len(saved) // 2], cached_head=min(saved),
        steps=len(computing), longest=longest and LongestStep(longest.step_id, longest.t1 - longest.t0, longest.prompt_tokens),
        reader=tuple(it.t - ARRIVED for it in [*recent, *after] if worst and it.request_id == worst.request_id),
        streaming=len(streaming), worst=worst and (worst.request_id, worst.step_id, worst.t, worst.itl_ms), usual_ms=usual_ms,
        paused=len({token.request_id for token in readers if token.itl_ms > (max(usual_ms + 5, 2 * usual_ms) if usual_ms else 200)}),
        others_ms=max(others, default=None), waited=len(waited[waited_for]),
        waited_for=waited_for if waited[waited_for] else None, preempted=len({i for step in steps for i in step.preempted}),
        own_gap_ms=median(token.itl_ms for token in mine) if mine else None, ttft_p50=median(ttft),
        ttft_last=max(ttft), ttft=tuple(ttft),
        recomputed=sum(step.recomputed_tokens for step in steps), swapped=sum(step.swapped_out for step in steps),
        reader_gap_ms=median(token.itl_ms for token in readers) if readers else None,
        drafted=sum(entry.decode_tokens - 1 for step, entry in entries if step.draft_tokens and entry.decode_tokens > 1),
        accepted=len([t for t in run.rows("tokens", ARRIVED, until) if t.itl_ms == 0 and t.request_id in own]),
        gaps=tuple((token.t - ARRIVED, token.itl_ms) for token in shown),
        gaps_around=tuple((token.t - ARRIVED, token.itl_ms) for token in around),
        prefills=tuple((step.t0 - ARRIVED, step.t1 - ARRIVED, step.prompt_tokens) for step in steps if step.step_id in computing),
        tokens_per_s=1000 * tokens / (ended - ARRIVED) if answered else None, factors=tuple(sorted(factors)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_the_facts_of_a_burst_are_those_of_its_whole_run(seed: int) -> None:
    draw = random.Random(seed)
    run = drawn(draw)
    story, ended, known = StoryOfFrames(run.knobs), max(one["end"] for one in run.own.values()), 0.0
    streaming = [i for i, (first, end) in run.readers.items() if first < ARRIVED < end]
    done = max(one["first"] for one in run.own.values())
    for one in run.frames(draw):
        story.take(one)
        t = one["t"]
        heard = {token.request_id for token in run.rows("tokens", ARRIVED, t) if token.itl_ms and token.t >= done}
        computed = t >= done and all(i in heard or run.readers[i][1] <= t for i in streaming)
        assert (story.burst(1) is not None) == (computed or t >= ended), t
        assert (story.burst(1, answered=True) is not None) == (t >= ended)
        if t >= ended and not known:
            known = t
    facts = story.burst(1)
    assert facts == found(run, known)
    assert figures_in(what_happened(facts)).get("slow", slow_mark(facts.factors)) == slow_mark(facts.factors)


def slow_mark(factors: tuple[float, ...]) -> str:
    slow = [f"×{factor:g}" for factor in factors if factor > 1]
    return f"{' partly' * (len(factors) > 1)} at {' and '.join(slow)}" if slow else ""


# -- steady traffic


@pytest.mark.parametrize("seed", range(60))
def test_the_facts_of_steady_traffic_are_those_of_its_latest_stretch(seed: int) -> None:
    draw, begun, run = random.Random(seed), 1000, TrackedRun(KNOBS, {"t": 0.0, "requests": []})
    watch, arrivals, tokens = SteadyWatch(begun, run), [], []
    for request, t in enumerate(sorted(draw.choices(range(500, 20_000), k=draw.randint(5, 40)))):
        kind, first = draw.choice(["steady", "steady", "own", "lane"]), draw.choice([None, 30, 90])
        arrivals.append((t, kind, first, draw.choice([None, "stop", "length", "abort"])))
        events = [submitted(request, t, kind=kind)]
        events += [[request, "first", t + first, {"ttft_ms": first}]] if first else []
        events += [[request, "finished", t + 100, {"reason": arrivals[-1][3]}]] if arrivals[-1][3] else []
        gaps = [TokenRow(request, float(t + 200 + n), draw.choice([0.0, 4.0, 60.0, 250.0]), 0) for n in range(3)]
        tokens += gaps
        one = frame(t + 300, requests=events, tokens=gaps)
        run.take(one)
        watch.take(one)
    for _ in range(30):
        now, last, ended = (
            draw.choice([999, 1000, 1001, draw.randint(1000, 22_000), 1000 * draw.randint(6, 22)]),
            10_000.0,
            draw.random() < 0.3,
        )
        now += draw.choice([0, 0, 1])
        since = max(begun, now - last)
        seen = [one for one in arrivals if one[1] != "lane" and one[0] >= since]
        done = [one for one in seen if one[3] in ("stop", "length")]
        ttft = sorted(one[2] for one in seen if one[2])
        long = [token.itl_ms for token in tokens if token.itl_ms and token.t - token.itl_ms >= begun
                and token.t // 1000 * 1000 >= since - 1000]  # fmt: skip
        enough = ended or (now - since >= 5000 and len(done) >= 10)
        assert watch.facts(now, last, ended=ended) == (
            SteadyFacts(own=all(one[1] == "own" for one in seen), knobs=KNOBS, seconds=(now - since) / 1000, sent=len(seen),
                        rate=1000 * len(seen) / (now - since), done=len(done), worst_ms=max(long, default=None),
                        ttft_p95=percentile(ttft, 95))
            if ttft and now > since and enough else None
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_steady_traffic_is_told_with_its_figures_and_compared_at_a_similar_rate(seed: int) -> None:
    draw = random.Random(seed)
    now = SteadyFacts(own=draw.random() < 0.5, knobs=KNOBS, seconds=draw.choice([0.4, 1.96, 2.0, 2.6, 31.0]),
                      sent=draw.randint(1, 40), rate=draw.choice([1.0, 4.0]), done=draw.randint(0, 40),
                      worst_ms=draw.choice([None, 20.0]), ttft_p95=draw.choice([30.0, 90.0]))  # fmt: skip
    told = figures_in(how_it_goes(now))
    assert told["seconds"] == (f"{now.seconds:.0f}" if now.seconds >= 2 else f"{now.seconds:.1f}")
    assert (told["done"], told.get("pause"), told["first"]) == (
        str(now.done),
        now.worst_ms and "20 ms",
        f"{now.ttft_p95:.0f} ms",
    )
    assert told.get("own", "")[:2].strip() == (str(now.sent) if now.own else "")
    assert told.get("rate") == (None if now.own else f"{now.rate:g}")
    faster = draw.choice([1.0, 1.25, 1.26, 0.8, 0.79])
    knobs = draw.choice([{"max_batch_size": 9}, {"max_batch_size": 9, "prefix_cache": False}, {"slow_motion": 2.0}, {}])
    before = replace(now, rate=now.rate * faster, worst_ms=now.worst_ms and 70.0, knobs={**KNOBS, **knobs})
    told = figures_in(compared(now, before))
    if not 0.8 <= faster <= 1.25 or [*knobs] != ["max_batch_size"]:
        assert told == {}
    else:
        change = {"pause": "70 ms"} if now.worst_ms else {"nothing": "no"}
        assert told == {"setting": "max batch", "value": "9", **change, **({} if "nothing" in change else {"slow": ""})}
    assert compared(None, now) == compared(now, None) == []


# -- two bursts


def test_bursts_can_be_compared_that_asked_the_same_in_the_same_state() -> None:
    draw = random.Random(1)
    for _ in range(600):
        check_comparable(draw)


def check_comparable(draw: random.Random) -> None:
    cache = draw.choice([{}, {}, {"prefix_cache": False}, {"same_step_sharing": False}])
    knobs = {
        **KNOBS,
        **draw.choice([{}, {"prefill_max_tokens": 64}, {"prefill_max_tokens": 64}, {"prefill_max_tokens": 64}]),
        **cache,
    }
    changes: dict[str, list[Any]] = {
        "streaming": [0, 1, 3, 4, 5, 6], "prompt_tokens": [899, 900, 1000, 1100, 1101], "saved_tokens": [0, 90, 100, 120],
        "undisturbed": [False], "factors": [(5.0,)], "kind": ["unique", None], "prompts": [19, 21], "answer": [63, None], "seed": [None, 9],
    }  # fmt: skip
    some = {name: draw.choice(changes[name]) for name in draw.sample([*changes], draw.choice([0, 1, 1, 2]))}
    one, other = replace(A_BURST, streaming=draw.choice([0, 1, 4])), replace(A_BURST, burst=0, knobs=knobs)
    other = replace(other, **{"streaming": one.streaming, **some})
    same = all(getattr(one, name) == getattr(other, name) for name in ("kind", "prompts", "answer", "factors"))
    alike = {
        "state": (one.streaming == 0) == (other.streaming == 0) and abs(one.streaming - other.streaming) < 2,
        "length": abs(one.prompt_tokens - other.prompt_tokens) <= 100,
        "saved": bool(cache) or other.saved_tokens / other.prompt_tokens <= 0.1,
    }
    expected = same and all(alike.values()) and other.undisturbed and knobs != KNOBS
    assert comparable(one, other) == expected
    assert not comparable(replace(one, kind=None), replace(other, kind=None))
    assert not comparable(replace(one, undisturbed=False), other)


@pytest.mark.parametrize("seed", range(40))
def test_a_picture_names_its_runs_and_only_times_are_slowed(seed: int) -> None:
    draw = random.Random(seed)
    factors = draw.choice([(1.0,), (5.0,), (1.0, 5.0)])
    seeds = draw.choice([(1, 1), (1, 2), (None, None), (0, 0), (None, 1)])
    names = draw.sample(
        ["max_batch_size", "prefill_max_tokens", "prefix_cache", "prefill_interval", "max_overtakes"],
        draw.randint(1, 5),
    )
    values = {"prefix_cache": False, "max_overtakes": None}
    knobs = {**KNOBS, **{name: values.get(name, 7) for name in names}}
    before = replace(A_BURST, factors=factors, seed=seeds[0], tokens_per_s=90.0, recomputed=5, done=2000.0,
                     streaming=draw.choice([0, 4]), gaps=tuple((100.0 * n, 3.0) for n in range(60)))  # fmt: skip
    pair = burst_pair([before], [replace(before, seed=seeds[1], knobs=knobs, done=1000.0)])
    assert pair["about"].startswith("the same 20 prompts") == (seeds[0] is not None and seeds[0] == seeds[1])
    assert ("4 readers" in pair["shows"]) == bool(before.streaming)
    assert pair["unit"] == f"ms{slow_mark(factors)}"
    units = {"throughput": "tok/s", "tokens computed": "tokens", "tokens computed again": "tokens"}
    assert 1 <= len(pair["figures"]) <= 3
    for figure in pair["figures"]:
        assert figure["unit"] == units.get(figure["title"], f"ms{slow_mark(factors)}")
    for side in pair["sides"]:
        assert [t for t, _ in side["gaps"]] == [100 * n for n in range(46)], (
            "once and a half as long as the longer one, and 1.5 s"
        )
    order = [name for name in KNOBS if name in names]
    assert changed_settings(KNOBS, knobs) == order
    told = named_change(knobs, KNOBS)
    if len(names) == 1:
        assert told["setting"] == (SETTINGS[names[0]].short or SETTINGS[names[0]].label.lower())
        assert told.get("without") == ("no" if knobs[names[0]] is None else None)
    else:
        rest = [f"{len(names) - 3} more"] * (len(names) > 3)
        parts = told["settings"].split(" and ")
        assert (len(parts), parts[3:]) == (min(len(names), 3) + len(rest), rest)
        for name, part in zip(order[:3], parts, strict=False):
            assert part.startswith(SETTINGS[name].short or SETTINGS[name].label.lower())


# What a burst is measured by: the title, the fields of its facts that it is drawn from, and its value.
PAUSE, FIRST, RATE, GAP = "longest pause", "first tokens", "throughput", "time per token"
LAST, READER, AGAIN, COMPUTED = "last answers begin", "readers' usual wait", "tokens computed again", "tokens computed"
FOR = {
    "max_batch_size": [LAST, GAP], "prefill_max_tokens": [PAUSE, FIRST], "prefill_interval": [READER, FIRST],
    "prefix_cache": [FIRST, COMPUTED], "speculative_tokens": [GAP], "preemption_mode": [AGAIN, LAST], "max_overtakes": [],
}  # fmt: skip


def measured(draw: random.Random) -> dict[str, float | None]:
    values: dict[str, float | None] = {name: draw.choice([90.0, 100.0, 116.0]) for name in (FIRST, LAST)}
    values |= {name: draw.choice([None, 0.0, 90.0, 100.0, 116.0]) for name in (PAUSE, RATE, GAP, READER)}
    return {**values, AGAIN: draw.choice([0, 0, 90, 116]), COMPUTED: draw.choice([0, 90, 116])}


def facts_of(values: dict[str, float | None], knobs: dict[str, Any], factors: tuple[float, ...]) -> BurstFacts:
    worst = None if values[PAUSE] is None else Gap(1, 4, 9.0, values[PAUSE])
    return replace(
        A_BURST, knobs=knobs, factors=factors, worst=worst, ttft_p50=values[FIRST], ttft_last=values[LAST], recomputed=values[AGAIN],
        tokens_per_s=values[RATE], own_gap_ms=values[GAP], reader_gap_ms=values[READER], saved_tokens=1000 - values[COMPUTED],
    )  # fmt: skip


def verdict(title: str, a: float, b: float) -> str:
    if max(a, b) < 1.15 * min(a, b):
        return "same"
    return "better" if (a < b) == (title == RATE) else "worse"


@pytest.mark.parametrize("seed", range(150))
def test_bursts_are_compared_in_what_their_settings_are_for(seed: int) -> None:
    draw = random.Random(seed)
    factors = draw.choice([(1.0,), (5.0,)])
    names = draw.sample([*FOR], draw.choice([1, 1, 2]))
    values = {name: {"prefix_cache": False, "preemption_mode": "swap"}.get(name, 7) for name in names}
    before, after = measured(draw), measured(draw)
    knobs = {**KNOBS, **values}
    first, second = facts_of(before, KNOBS, factors), facts_of(after, knobs, factors)
    meant = [title for name in KNOBS if name in values for title in FOR[name]]
    titles = [*dict.fromkeys([*meant, PAUSE, FIRST, RATE, GAP])]
    known = [
        title for title in titles if None not in (before[title], after[title]) and (before[title] or after[title])
    ][:3]
    verdicts = {title: verdict(title, before[title], after[title]) for title in known}
    said = [title for title in known if title in meant or not meant]
    clear = [title for title in said if verdicts[title] != "same"]
    marks = {title: "" if one != "same" and clear else "same" for title, one in verdicts.items()}
    for title in clear[:1]:
        marks |= {
            other: "price" if verdicts[other] == "worse" else "gain"
            for other in clear
            if verdicts[other] != verdicts[title]
        }
        marks[title] = "effect"
    pair = burst_pair([first], [second])
    units = {RATE: "tok/s", AGAIN: "tokens", COMPUTED: "tokens"}
    slow = slow_mark(factors)
    assert pair["figures"] == [
        {"title": title, "before": f"{before[title]:.0f}", "after": f"{after[title]:.0f}", "unit": units.get(title, f"ms{slow}"),
         "mark": marks[title]}
        for title in known
    ]  # fmt: skip
    told = before_and_after([first], [second])
    if not clear:
        assert told["nothing"] == "no"
        return
    for name, title in zip(("effect", "other"), clear, strict=False):
        unit, value = units.get(title, "ms"), {"before": before[title], "after": after[title]}
        for side, one in value.items():
            assert told[f"{name}_{side}"] == f"{one:.0f}" + f" {unit}" * (unit != "tokens")
        assert told[f"{name}_slow"] == (slow if unit == "ms" else "")
    if clear[1:]:
        words = {"price": "The price: ", "gain": "In return: "}.get(marks[clear[1]], "")
        assert (told["other"].startswith(words), ":" in told["other"]) == (True, bool(words))
    unclear = [title.capitalize() for title in said if title not in clear]
    assert told.get("unclear") == (unclear[0] if unclear and not clear[1:] else None)


def test_the_knobs_here_are_the_engines() -> None:
    assert Knobs().to_dict() == KNOBS
