"""What the page says about a run, made from frames: its figures, which are fields of the captions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roseplay.config import Knobs
from roseplay.engine.records import EntryRecord, StepRow, TokenRow
from roseplay.formats.segments import plain
from roseplay.play.story.burst_facts import NOTICED_MS, BurstFacts, Gap, LongestStep
from roseplay.play.story.caption import caption, figures_in, for_page
from roseplay.play.story.pair import before_and_after, burst_pair
from roseplay.play.story.story import KEEP_MS, Story
from roseplay.play.story.words import guesses, what_happened
from roseplay.recording.run import Run
from roseplay.recording.schema import EventRow, KnobRow
from roseplay.traffic.environment import Machine, num_cpus
from tests.waiting import wait_until

KNOBS = Knobs().to_dict()
STREAMING, BURST = 1, (10, 11)
A_BURST = BurstFacts(
    burst=1, kind="mix", seed=1, answer=64, knobs=KNOBS, undisturbed=True, arrived=0.0, done=9.0, prompts=20,
    prompt_tokens=1000, saved_tokens=0, shared_head=0, cached_head=0, steps=1, longest=LongestStep(4, 880.0, 800),
    streaming=4, paused=0, worst=Gap(1, 4, 9.0, 896.0), usual_ms=450.0, others_ms=None, waited=0,
    waited_for=None, preempted=0, own_gap_ms=6.0, ttft_p50=80.0, ttft_last=120.0,
)  # fmt: skip


def frame(t: float, **lists: Any) -> dict[str, Any]:
    rows = {"requests": [EventRow(*row) for row in lists.pop("requests", ())]}
    rows |= {"knobs": [KnobRow(*row) for row in lists.pop("knobs", ())]}
    return {"t": t, "steps": [], "tokens": [], **rows, "burst": None, **lists}


def step(number: int, t0: float, t1: float, *parts: tuple[int, int], limit: str = "decode", **more: Any) -> StepRow:
    """``parts``: pairs of a request and the number of its prompt tokens that the step computes."""
    entries = [
        EntryRecord(request, prompt, 1 - bool(prompt), 0, 0, more.get("cached", 0), 0) for request, prompt in parts
    ]
    prompt, preempted = sum(tokens for _, tokens in parts), more.get("preempted", [])
    tokens = {"prompt_tokens": prompt, "decode_tokens": len(parts)}
    return StepRow(number, t0=t0, t1=t1, device_ms=t1 - t0, **tokens, entries=entries, preempted=preempted, limit=limit)


def submitted(request: int, t: float, **about: Any) -> list[Any]:
    return [request, "submitted", t, {"kind": "lane", "prompt_tokens": 100, "burst": None, **about}]


def figures(burst: int = 1, **more: Any) -> dict[str, Any]:
    return {"burst": burst, "kind": "mix", "seed": 7, "answer": 64, "size": len(BURST), **more}


class StoryOfFrames(Story):
    """Its run takes each frame first."""

    def __init__(self, knobs: dict[str, Any], others_s: Callable[[], float | None] = lambda: None) -> None:
        self.run = Run(knobs, {"t": 0.0, "requests": []}, keep_ms=KEEP_MS)
        super().__init__(self.run, others_s)

    def take(self, frame: dict[str, Any]) -> dict[str, Any] | None:
        self.run.take(frame)
        return super().take(frame)


def an_answer_streams(knobs: dict[str, Any] = KNOBS, others_s: Callable[[], float | None] = lambda: None) -> Story:
    """A story of five tokens, 5 ms apart, until 30 ms."""
    story = StoryOfFrames(knobs, others_s)
    story.take(frame(10, requests=[submitted(STREAMING, 0), [STREAMING, "first", 5, {"ttft_ms": 5}]]))
    story.take(frame(31, tokens=[TokenRow(STREAMING, 10 + 5 * i, 5.0, i) for i in range(5)]))
    return story


def a_burst_arrives(
    story: Story, at: float = 40, burst: int = 1, pause: float = 60, gap: float = 0, **more: Any
) -> Any:
    """One step computes its two prompts while the streaming answer waits. A single frame contains it all."""
    end, first = at + pause - 2, BURST[0] + 10 * burst
    own = (first, first + 1)
    requests = [
        *(submitted(i, at, kind="burst", burst=burst) for i in own),
        *([i, "first", end, {"ttft_ms": end - at}] for i in own),
    ]
    computing = step(9, at, end, (STREAMING, 0), *((i, 400) for i in own), limit="prefill")
    tokens = [TokenRow(STREAMING, end, pause, 9), TokenRow(STREAMING, end + 6, 6.0, 10)]
    said = story.take(frame(end + 7, requests=requests, steps=[computing], tokens=tokens, burst=figures(burst), **more))
    ended = [[i, "finished", end + 8, {"reason": "length"}] for i in own]
    story.take(frame(end + 9, requests=ended, tokens=[TokenRow(own[0], end + 8, gap, 11)] if gap else []))
    return said


def told(story: Story, burst: int = 1) -> dict[str, str]:
    """The figures in the caption about a burst."""
    return figures_in(what_happened(story.burst(burst)))


def test_a_burst_that_makes_an_answer_pause() -> None:
    story = an_answer_streams()
    said = a_burst_arrives(story)
    assert said == story.latest
    facts = story.burst(1)
    assert (facts.streaming, facts.paused, facts.worst, facts.usual_ms) == (1, 1, Gap(STREAMING, 9, 98, 60), 5.0)
    assert facts.gaps == ((58, 60),), "the longest is among them"
    assert facts.gaps_around == (*((5.0 * i - 30, 5.0) for i in range(5)), (64, 6))
    assert facts.longest == LongestStep(9, 58, 800)
    assert (facts.ttft_p50, facts.prompts, facts.prompt_tokens, facts.steps) == (58, 2, 200, 1)
    effect = what_happened(facts)
    assert said["lines"] == [for_page(effect)]
    assert figures_in(effect) == {"prompts": "2 prompts", "step": "58 ms", "slow": "", "paused": "1 streaming answer"}


def test_a_burst_whose_tokens_are_guessed() -> None:
    story, own = StoryOfFrames(KNOBS), 20
    requests = [submitted(own, 40, kind="burst", burst=1), [own, "first", 50, {"ttft_ms": 10}]]
    story.take(frame(51, requests=requests, steps=[step(1, 41, 50, (own, 100))], tokens=[TokenRow(own, 50, None, 1)]))
    drafted = EntryRecord(own, 0, 5, 100, 100, 0, 0)  # one token and four guesses, of which three are right
    guessed = replace(step(2, 51, 60), entries=[drafted], decode_tokens=5, draft_tokens=4, accepted_tokens=3)
    tokens = [TokenRow(own, 60, 10.0 if first else 0.0, 2) for first in (True, False, False, False)]
    ended = [[own, "finished", 60, {"reason": "length"}]]
    story.take(frame(61, requests=ended, steps=[guessed], tokens=tokens, burst=figures(size=1)))
    facts = story.burst(1)
    assert figures_in(guesses(facts)) == {"accepted": "3", "drafted": "4 guessed tokens"}
    assert figures_in(guesses(replace(facts, accepted=1))) == {"one": "1", "drafted": "4 guessed tokens"}
    assert not guesses(replace(facts, drafted=0)), "nothing was guessed"


def test_a_burst_that_is_stopped_is_not_spoken_of() -> None:
    story = an_answer_streams()
    events = [submitted(20, 40, kind="burst", burst=1), [20, "finished", 60, {"reason": "abort"}]]
    assert story.take(frame(61, requests=events, burst=figures())) is None
    assert story.burst(1) is None
    assert story.latest is None


def test_requests_that_wait_for_blocks() -> None:
    story = an_answer_streams()
    waiting = submitted(30, 40, kind="burst", burst=1)
    early = [step(8, 40, 45, (20, 50), limit="blocks", preempted=[STREAMING])]
    story.take(frame(46, requests=[submitted(20, 40, kind="burst", burst=1), waiting], steps=early, burst=figures()))
    events = [[20, "first", 80, {"ttft_ms": 40}], [30, "first", 90, {"ttft_ms": 50}]]
    computed = [step(9, 80, 90, (30, 50), (STREAMING, 0))]
    story.take(frame(91, requests=events, steps=computed, tokens=[TokenRow(STREAMING, 90, 60, 9)]))
    about = {"prompts": "2 prompts", "waited": "1", "place": "free KV blocks", "preempted": "1 running answer"}
    assert told(story) == about
    facts = story.burst(1)
    assert facts.ttft_last == 50
    assert figures_in(what_happened(replace(facts, recomputed=9))) == {**about, "recomputed": "9 tokens"}
    assert figures_in(what_happened(replace(facts, recomputed=9, swapped=2))) == {**about, "swapped": "2 blocks"}


def test_the_second_burst_is_compared_with_the_first_under_another_budget() -> None:
    story = an_answer_streams()
    a_burst_arrives(story)
    story.take(frame(150, knobs=[[150, 10, {"prefill_max_tokens": [None, 64]}]]))
    said = a_burst_arrives(story, at=200, burst=2, pause=17)
    compared = {"setting": "budget", "value": "64", "effect_after": "17 ms", "effect_before": "60 ms"}
    assert said["figures"][1].items() >= compared.items()
    assert [text for text, style in said["lines"][1] if style == "value"] == ["64"]


def slow_motion(t: float, before: float, after: float) -> list[Any]:
    return [t, 9, {"slow_motion": [before, after]}]


def test_a_burst_measured_partly_in_slow_motion_says_so_and_blames_nothing() -> None:
    story = an_answer_streams()
    a_burst_arrives(story, knobs=[slow_motion(50, 1.0, 5.0)])
    assert told(story) == {
        "prompts": "2 prompts", "beside": "1 answer", "whom": "No answer", "short": "60 ms", "slow": " partly at ×5",
    }  # fmt: skip
    facts = story.burst(1)
    assert (facts.factors, facts.paused, facts.usual_ms) == ((1.0, 5.0), 0, None)
    a_burst_arrives(story, at=300, burst=2)
    after = story.burst(2)
    assert after.factors == (5.0,), "what was before its arrival is not its own"


def test_a_comparison_names_the_settings_that_differ() -> None:
    knobs = {**KNOBS, "prefix_cache": False, "max_batch_size": 2}
    named = before_and_after([A_BURST], [replace(A_BURST, knobs=knobs)])
    assert named == {"settings": "max batch 2 and prefix cache off", "nothing": "no", "each": "Each", "times": "once"}


def test_bursts_between_which_the_load_changed_are_given_no_cause() -> None:
    before = replace(A_BURST, ttft=(80.0,), gaps=((9.0, 896.0),), tokens_per_s=790.0)
    faster = {"worst": Gap(1, 4, 8.0, 61.0), "knobs": {**KNOBS, "prefill_max_tokens": 64}}
    for others in ((0.1, 0.6), (0.6, 0.1)):
        pair = burst_pair(
            *(
                [replace(it, others=share)]
                for it, share in zip((before, replace(before, **faster)), others, strict=True)
            )
        )
        assert plain(pair["sentence"]) == (
            "With budget 64, these bursts cannot tell: the load by other programs changed between them."
        )
        assert {one["mark"] for one in pair["figures"]} == {"same"}
    pair = burst_pair([replace(before, others=0.5)], [replace(before, **faster, others=0.6)])
    assert "61 ms instead of 896 ms" in plain(pair["sentence"])


def test_a_story_notes_what_other_programs_took_of_the_machine() -> None:
    seconds = iter([5.0, 5.0 + 0.5 * 0.1 * num_cpus()])
    story = an_answer_streams(others_s=lambda: next(seconds))
    story.take(frame(40, requests=[submitted(BURST[0], 40, kind="burst", burst=1)], burst=figures(size=1)))
    story.take(
        frame(140, requests=[[BURST[0], "first", 45, {"ttft_ms": 5}], [BURST[0], "finished", 50, {"reason": "length"}]])
    )
    assert story.burst(1).others == pytest.approx(0.5)


def test_the_time_of_other_programs_is_counted() -> None:
    machine, spin = Machine(), "import os, time\nif not os.fork():\n    while time.process_time() < 0.4: pass"
    if (before := machine.others_s()) is None:
        pytest.skip("the system does not tell")
    subprocess.run([sys.executable, "-c", spin], check=True)  # its child is orphaned
    wait_until(lambda: machine.others_s() - before >= 0.3)


def test_the_picture_of_two_bursts_shows_what_the_sentence_says() -> None:
    before = replace(
        A_BURST, ttft=(80.0,), gaps=((9.0, 896.0),), gaps_around=((-20.0, 20.0), (9e6, 5.0)), tokens_per_s=790.0,
        prefills=((4.0, 899.96, 720),),
    )  # fmt: skip
    knobs = {**KNOBS, "prefill_max_tokens": 64}
    faster = {"worst": Gap(1, 4, 8.0, 61.0), "ttft_p50": 903.0, "knobs": knobs, "tokens_per_s": 741.0}
    pair = burst_pair([before], [replace(before, **faster)])
    assert plain(pair["sentence"]) == (
        "With budget 64, the longest pause was 61 ms instead of 896 ms. The price: half of the first tokens came within 903 ms instead of 80 ms. "
        "Each ran once."
    )
    sides = pair["sides"]
    assert [plain(side["title"]) for side in sides] == ["Prefill budget ∞", "Prefill budget 64"]
    assert [side["longest"] for side in sides] == [[9, 896.0], [8, 61.0]]
    assert sides[0]["gaps"] == [[9, 896.0]]
    assert sides[0]["steps"] == [[4.0, 900.0, 720]]
    assert sides[0]["around"] == [[-20, 20.0]], "long after the burst, nothing is of interest"
    figures = [(one["title"], one["before"], one["after"], one["mark"]) for one in pair["figures"]]
    assert figures == [
        ("longest pause", "896", "61", "effect"), ("first tokens", "80", "903", "price"), ("throughput", "790", "741", "same"),
    ]  # fmt: skip


def test_the_picture_marks_what_its_sentence_speaks_of() -> None:
    before = replace(A_BURST, ttft_p50=903.0, reader=(-20.2, 5.0), tokens_per_s=None, own_gap_ms=None)
    pair = burst_pair([before], [replace(before, ttft_p50=80.0, knobs={**KNOBS, "prefix_cache": False})])
    assert plain(pair["sentence"]).startswith(
        "With prefix cache off, half of the first tokens came within 80 ms instead of 903 ms."
    )
    assert [(side.get("longest"), side.get("first"), side["reader"]) for side in pair["sides"]] == [
        (None, 903.0, [-20, 5]), (None, 80.0, [-20, 5]),
    ]  # fmt: skip
    assert pair["longest"] == "half of the first tokens after"


def test_repeated_bursts_differ_only_if_their_values_do_not_overlap() -> None:
    def burst(ms: float, first: float, **knobs: Any) -> BurstFacts:
        return replace(A_BURST, worst=Gap(1, 4, 8.0, ms), ttft_p50=first, knobs={**KNOBS, **knobs})

    def told(before: list[BurstFacts], after: list[BurstFacts]) -> tuple[str, list[tuple[str, str]]]:
        pair = burst_pair(before, after)
        return plain(pair["sentence"]), [(one["before"], one["after"]) for one in pair["figures"][:2]]

    before, after = (
        [burst(896, 80), burst(910, 80)],
        [burst(61, 79, prefill_max_tokens=64), burst(64, 80, prefill_max_tokens=64)],
    )
    assert told(before, after) == (
        "With budget 64, the longest pause was 61–64 ms instead of 896–910 ms. First tokens: no clear difference. Each ran twice.",
        [("896–910", "61–64"), ("80", "79–80")],
    )
    slower = [burst(896, 80), burst(60, 80)]  # such as a machine that was busy at first
    assert told(slower, after)[0] == "With budget 64, no clear difference. Each ran twice."


def test_the_throughput_counts_every_token_until_the_end_of_a_burst() -> None:
    story = an_answer_streams()
    arrived = submitted(BURST[0], 40, kind="burst", burst=1)
    story.take(frame(50, requests=[arrived, [BURST[0], "first", 45, {"ttft_ms": 5}]], burst=figures(size=1)))
    story.take(frame(60, tokens=[TokenRow(STREAMING, 55.0, 0.0, 1)] * 60_000))
    ended = [BURST[0], "finished", 1040, {"reason": "length"}]
    story.take(frame(1050, requests=[ended], tokens=[TokenRow(STREAMING, t, 1.0, 2) for t in (1040.0, 1041.0)]))
    assert story.burst(1).tokens_per_s == 60_001


def test_what_is_said_of_two_bursts_is_in_the_end_what_their_picture_says() -> None:
    story = an_answer_streams()
    a_burst_arrives(story, gap=9)
    story.take(frame(150, knobs=[[150, 10, {"max_batch_size": [32, 64]}]]))
    early = a_burst_arrives(story, at=200, burst=2, gap=30)
    pair = story.take_pair()
    assert pair is not None
    assert story.latest["lines"][1] == pair["sentence"] != early["lines"][1], "its gaps are known at its end"
    assert story.take_pair() is None, "it is told once"


def test_a_setting_that_changes_while_a_burst_runs_leaves_nothing_to_compare() -> None:
    story = an_answer_streams()
    a_burst_arrives(story)
    changed = [[210, 10, {"prefill_max_tokens": [None, 64]}]]
    said = a_burst_arrives(story, at=200, burst=2, knobs=changed)
    assert len(said["lines"]) == 1


@pytest.mark.parametrize(("at", "told"), [(39, True), (40, True), (41, False), (50, False)])
def test_what_a_demo_said_last_is_not_replaced_by_a_burst_that_arrived_earlier(at: float, told: bool) -> None:
    story = an_answer_streams()
    arrived = [submitted(i, 40, kind="burst", burst=1) for i in BURST]
    story.take(frame(41, requests=arrived, burst=figures()))
    story.say("after demo", at, [caption(["The end."], {})])
    assert (story.take(frame(51, knobs=[[51, 1, {}]])) or {})["lines"] == [[["The end.", ""]]]
    answers = [[i, "first", 60, {"ttft_ms": 20}] for i in BURST]
    ended = [[i, "finished", 62, {"reason": "abort"}] for i in BURST]
    said = story.take(frame(63, requests=[*answers, *ended], tokens=[TokenRow(STREAMING, 62, 22, 9)]))
    assert (said is not None) == told
    assert story.burst(1) is not None, "its facts are recorded all the same"
    assert a_burst_arrives(story, at=100, burst=2) is not None, "a later burst is mentioned"


# -- sentences over generated facts

TIMES = st.floats(1, 5000)


@st.composite
def facts(draw: Any) -> BurstFacts:
    streaming = draw(st.integers(0, 8))
    prompts = draw(st.integers(1, 64))
    tokens = draw(st.integers(prompts, 20_000))
    steps = draw(st.integers(0, 40))
    saved = draw(st.integers(0, tokens))
    limits = {"prefill_max_tokens": st.sampled_from([None, 16, 64]), "max_batch_size": st.sampled_from([8, 32])}
    return replace(
        A_BURST, burst=draw(st.integers(1, 99)), seed=draw(st.integers(0, 2)), knobs={**KNOBS, **draw(st.fixed_dictionaries(limits))},
        prompts=prompts, prompt_tokens=tokens, saved_tokens=saved,
        shared_head=draw(st.integers(0, 500)), cached_head=draw(st.integers(0, 500)), steps=steps,
        longest=LongestStep(3, draw(TIMES), tokens - saved) if steps else None,
        streaming=streaming, paused=draw(st.integers(0, streaming)),
        worst=Gap(1, 3, 50.0, draw(TIMES)) if streaming else None, usual_ms=draw(TIMES),
        others_ms=draw(st.none() | TIMES), waited=draw(st.integers(0, prompts)),
        waited_for=draw(st.sampled_from([None, "blocks", "batch"])), preempted=draw(st.integers(0, 9)),
        own_gap_ms=draw(TIMES), ttft_p50=draw(TIMES),
    )  # fmt: skip


@settings(max_examples=60)
@given(facts())
def test_the_caption_about_a_burst_is_short_and_praises_no_pause_that_is_long_in_itself(one: BurstFacts) -> None:
    effect = what_happened(one)
    named = figures_in(effect)
    assert len(plain(effect)) <= 140
    assert len({"waited", "last", "paused", "long", "short"} & named.keys()) == 1, "one effect"
    if "short" in named:
        assert one.worst and one.worst.ms < NOTICED_MS
    if "last" in named:
        assert not one.streaming


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"prompt_tokens": 400, "saved_tokens": 320, "cached_head": 16}, {"cached": "16 tokens"}),
        ({"prompt_tokens": 400, "saved_tokens": 320, "shared_head": 16}, {"shared": "16 tokens"}),
        (
            {"knobs": {**KNOBS, "prefill_max_tokens": 64}, "steps": 9, "paused": 4},
            {"beside": "4 answers", "portion": "64"},
        ),
        ({}, {"beside": "4 answers"}),
    ],
)
def test_the_longest_pause_is_told_as_it_is_whatever_came_before_it(changes: Any, about: Any) -> None:
    long = figures_in(what_happened(replace(A_BURST, **changes)))
    assert long == {"prompts": "20 prompts", **about, "long": "896 ms", "usual": "450 ms", "slow": ""}
    short = figures_in(what_happened(replace(A_BURST, **changes, worst=Gap(1, 3, 50.0, 17.0))))
    assert short == {"prompts": "20 prompts", **about, "whom": "No answer", "short": "17 ms", "slow": ""}


ALONE = replace(A_BURST, streaming=0, worst=None)
ITS_TIMES = {"first": "80 ms", "last": "120 ms", "slow": ""}


@pytest.mark.parametrize("kind", ["unique", "equal", "shared_head", "mix"])
def test_a_burst_beside_no_answer_tells_what_its_kind_shows(kind: str) -> None:
    named = figures_in(what_happened(replace(ALONE, kind=kind, saved_tokens=900)))
    assert named == {kind: "20", "computed": "100", "tokens": "1\u202f000", "shared": "900", **ITS_TIMES}


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"kind": None}, {"prompts": "20 prompts", "tokens": "1\u202f000"}),
        ({"saved_tokens": 900, "cached_tokens": 900}, {"mix": "20", "computed": "100", "tokens": "1\u202f000", "cached": "900"}),
        ({"saved_tokens": 900, "cached_tokens": 60}, {"mix": "20", "computed": "100", "tokens": "1\u202f000", "cached": "60",
                                                      "shared": "840"}),
        ({"steps": 0}, {"mix": "20"}),
    ],
)  # fmt: skip
def test_what_is_not_known_of_a_burst_is_not_told(changes: Any, about: dict[str, str]) -> None:
    assert figures_in(what_happened(replace(ALONE, **changes))) == {**about, **ITS_TIMES}


@pytest.mark.parametrize(
    ("form", "parts"),
    [
        ("plain", [["plain", ""]]),
        ("**two** words", [["two", "bold"], [" words", ""]]),
        ("**to [[{budget}]]:** at most", [["to ", "bold"], ["64", "value"], [":", "bold"], [" at most", ""]]),
        (("{unknown} tokens", "**{prompts} arrived**"), [["**2** [[prompts]] arrived", "bold"]]),
        ("{unknown}", []),
    ],
)
def test_a_form_becomes_segments_and_figures_stand_as_they_are(form: Any, parts: list[list[str]]) -> None:
    assert for_page(caption([form], {"budget": "64", "prompts": "**2** [[prompts]]"})) == parts


# -- steady traffic, and that of a file


def test_traffic_from_a_file_is_told_when_its_last_answer_has_ended() -> None:
    story = StoryOfFrames(KNOBS)
    arrived = [submitted(i, 10, kind="own") for i in (1, 2)]
    assert story.take(frame(500, requests=[*arrived, [1, "first", 60, {"ttft_ms": 50}]])) is None
    assert story.take(frame(900, requests=[[1, "finished", 890, {"reason": "length"}]])) is None, "one is not answered"
    assert story.take(frame(20_000, tokens=[TokenRow(2, 19_990, 20.0, 2)])) is None, "it still waits"
    events = [[2, "first", 940, {"ttft_ms": 930}], [2, "finished", 30_000, {"reason": "stop"}]]
    said = story.take(frame(30_010, requests=events, tokens=[TokenRow(2, 990, 50.0, 1)]))
    assert said["figures"] == [
        {"own": "2 requests", "seconds": "30", "done": "2", "pause": "50 ms", "first": "886 ms", "slow": ""}
    ]
    assert story.take(frame(30_020, requests=[submitted(3, 30_015)])) is None, "it is told once"


@pytest.mark.parametrize(("factor", "mark"), [(1.0, ""), (5.0, " at ×5")])
def test_steady_traffic_is_reported_every_few_seconds_and_compared_across_a_change(factor: float, mark: str) -> None:
    story = StoryOfFrames({**KNOBS, "slow_motion": factor})
    said = []
    for second in range(40):
        t = 1000.0 * second
        slow = 50.0 if second < 20 else 10.0
        request = 100 + second
        events = [
            *(submitted(request + 1000 * k, t + k, kind="steady") for k in range(3)),
            *([request + 1000 * k, "first", t + 40, {"ttft_ms": 40 - k}] for k in range(3)),
            *([request + 1000 * k, "finished", t + 90, {"reason": "length", "ttft_ms": 40 - k}] for k in range(3)),
        ]
        knobs = [[t, second, {"prefill_max_tokens": [None, 64]}]] if second == 20 else []
        tokens = [TokenRow(request, t + 90, slow, second)]
        said.append(story.take(frame(t + 100, requests=events, tokens=tokens, knobs=knobs)))
    spoken = [[plain(line) for line in one["lines"]] for one in said if one]
    assert 4 <= len(spoken) <= 8
    assert spoken[0][0].startswith("3")
    assert f"longest pause 50 ms, first token p95 40 ms{mark}." in spoken[0][0]
    assert f"no budget: longest pause 50 ms{mark}." in spoken[-1][1]
