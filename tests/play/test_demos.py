"""Guided demos: their numbers are those of the run, only one plays at a time, and it leaves nothing behind."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseplay.config import SIMULATED_GPUS, Knobs, SamplingParams
from roseplay.formats.segments import plain
from roseplay.play.bursts import LABELS, MAX_SIZE
from roseplay.play.controls import IDS
from roseplay.play.demos.asked import ChatFacts
from roseplay.play.demos.caption_figures import figures_of, ring
from roseplay.play.demos.catalog import BUDGET, CLIFF, DEMOS
from roseplay.play.demos.plan import plan, reading_s
from roseplay.play.demos.player import DemoBusyError, judgement
from roseplay.play.demos.script import CUT, QUESTIONS, Demo, DemoBurst, DemoChats, Scene, lane_prompts, reading
from roseplay.play.playground import Playground
from roseplay.play.story.burst_facts import BurstFacts, Gap, LongestStep
from roseplay.play.story.caption import caption, figures_in, longest
from roseplay.traffic.difference import difference
from tests.play.conftest import poll
from tests.play.fake_engine import INFO, FakeEngine
from tests.play.test_story import A_BURST
from tests.quiet import QuietMachine
from tests.waiting import wait_until

MINE, YOURS = "tab-of-mine", "tab-of-yours"
SHORT = Demo(
    name="short",
    title="Short",
    shows="two bursts",
    knobs={"prefill_max_tokens": None},
    scenes=(
        reading("**Four** stories.", read_s=0.4),
        reading("A burst.", read_s=0.4, burst=DemoBurst(name="first", kind="unique", size=3, answer=4)),
        reading(("{first_prompts} prompts, {first_nonsense}.", "{first_prompts} prompts."), read_s=0.4),
        reading("A budget of [[16]].", read_s=0.4, knobs={"prefill_max_tokens": 16}, rings=("budget",)),
    ),
    after="Try it.",
)
GUESS = replace(
    SHORT,
    name="guess",
    scenes=(
        Scene(caption=("Which?",), answers={"pause_rises": "Later", "first_prompts": "There are prompts"}),
        Scene(caption=("A burst.",), read_s=0.0, burst=DemoBurst(name="first", kind="unique", size=3, answer=4)),
        Scene(caption=(("It had {first_prompts} prompts.", CUT), "The price: {first_prompts}."), read_s=0.5),
    ),
)
CHATTING = replace(
    GUESS,
    name="chatting",
    scenes=(
        GUESS.scenes[0],
        Scene(caption=("Chats.",), read_s=0.5, chats=DemoChats(name="before", answer=1500)),
        Scene(caption=(("They waited {before_first_token}.", CUT),), read_s=0.5),
    ),
)
LONG = replace(SHORT, name="long", scenes=(reading("It takes long.", read_s=600), *SHORT.scenes))


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Playground]:
    """A playground that runs on its own, with one demo that takes a moment and one that takes minutes."""
    for demo in (SHORT, GUESS, CHATTING, LONG):
        monkeypatch.setitem(DEMOS, demo.name, demo)
    engine = FakeEngine(run=True, step_s=0.002)
    playground = Playground(engine, machine=QuietMachine())
    playground.start()
    yield playground
    playground.close()
    engine.close()


def begun(playground: Playground, name: str = "long") -> None:
    playground.start_demo(name, MINE)
    wait_until(lambda: playground.demos.latest)


def over(playground: Playground) -> bool:
    return playground.demos.status() is None


def test_a_demo_runs_to_its_end_and_leaves_all_as_it_was(running: Playground) -> None:
    running.set_knobs({"prefill_max_tokens": 512})
    asked = running.chats.send("Mine", lanes=[1], tab_id=MINE, params=SamplingParams(max_new_tokens=4))
    begun(running, "short")
    wait_until(lambda: {lane["lane"] for lane in poll(running, tab_id=MINE)["own"]["lanes"]} == {1, 2, 3, 4})
    wait_until(lambda: over(running))
    demos = [frame["demo"] or {} for frame in poll(running)["frames"]]
    shown = [plain(demo["caption"]) for demo in demos if demo.get("caption")]
    assert shown[-1] == "A budget of 16."
    assert "3 prompts." in shown, "the caption whose numbers are all known"
    assert running.knobs()["prefill_max_tokens"] == 512
    assert poll(running, tab_id=MINE)["own"]["lanes"][0]["order"] == asked, "the tab's own chat is restored"
    wait_until(lambda: all(stream.finished for stream in running.engine.streams.values()))
    said = wait_until(
        lambda: (story := poll(running, tab_id=MINE)["snapshot"]["story"]) and story["about"] == "after demo" and story
    )
    assert [plain(line) for line in said["lines"]] == ["A budget of 16.", "Try it."]
    assert poll(running, tab_id=MINE)["snapshot"]["demo"] is None


@pytest.mark.parametrize(
    ("guess", "judged"), [(1, "Not quite, the answer was “There are prompts”. "), (2, "You guessed right. "), (0, "")]
)
def test_it_goes_on_with_a_guess_which_the_figures_judge(running: Playground, guess: int, judged: str) -> None:
    begun(running, "guess")
    assert wait_until(lambda: poll(running)["snapshot"]["demo"])["answers"] == ["Later", "There are prompts"]
    assert not running.demos.next(MINE, 3), "there is no such answer"
    assert running.demos.next(MINE, guess)
    assert not running.demos.next(MINE, 1), "it has gone on"
    last = wait_until(lambda: (said := running.demos.latest) and said["scene"] == 2 and said)
    assert plain(last["caption"]) == f"{judged}It had 3 prompts. The price: 3."
    assert last["guess"] == ["", "Later", "There are prompts"][guess]
    assert last["figures"] == {"first_prompts": "3"}


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuietMachine, "others_s", lambda self: 1000 * time.monotonic())


@pytest.mark.usefixtures("busy")
def test_a_busy_machine_is_told_instead_of_a_price(running: Playground) -> None:
    begun(running, "guess")
    running.demos.next(MINE, 0)
    last = wait_until(lambda: (said := running.demos.latest) and said["scene"] == 2 and said)
    assert plain(last["caption"]).startswith("It had 3 prompts. Other programs keep this computer busy")


def test_its_question_waits_until_it_is_answered_or_another_tab_begins_a_demo(
    running: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roseplay.play.demos.player.STORIES_S", 0)
    for goes_on in (True, False):
        begun(running, "guess")
        wait_until(lambda: poll(running, tab_id=YOURS)["demo"] is None)
        assert poll(running, tab_id=MINE)["demo"]["own"] is True
        if goes_on:
            assert running.demos.next(MINE, 2)
            wait_until(lambda: over(running))
    running.start_demo("short", YOURS)
    assert poll(running, tab_id=YOURS)["demo"]["own"] is True
    assert poll(running, tab_id=MINE)["demo"]["own"] is False


@pytest.mark.parametrize("known", ["gap_same", "cut_limit"])
def test_a_guess_is_not_judged_if_other_programs_may_have_hidden_the_difference(known: str) -> None:
    answers = {"gap_rises": "Longer", "gap_same": "As long"}
    assert judgement("gap_same", answers, {known}, busy=True) == "This run cannot tell."
    assert judgement("gap_same", answers, {"gap_rises"}, busy=True) == "Not quite, the answer was “Longer”."


@pytest.mark.parametrize(("name", "size"), [("guess", "3"), ("chatting", "4")])
def test_a_run_that_is_cut_says_so_and_judges_no_guess(
    running: Playground, name: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roseplay.play.demos.player.LONGEST", 0)
    if name == "guess":  # the chats get first tokens
        running.engine.pause()
    begun(running, name)
    running.demos.next(MINE, 2)
    last = wait_until(lambda: (said := running.demos.latest) and said["scene"] == 2 and said)
    limit = last["figures"].pop("cut_limit")
    assert last["figures"] == {"cut_done": "0", "cut_size": size} and limit in ("0 s", "1 s")


def test_a_check_plays_both_bursts_again_in_the_reverse_order(running: Playground) -> None:
    with pytest.raises(ValueError, match="no two bursts to check: press Burst, move one setting"):
        running.start_demo("check", MINE)
    ask = {"size": 3, "kind": "unique", "max_new_tokens": 4, "seed": 5, "tab_id": MINE}
    for number, budget in enumerate((None, 16), 1):
        running.set_knobs({"prefill_max_tokens": budget})
        burst = running.traffic.burst(**ask)
        wait_until(lambda burst=burst: all(tracked.finished for tracked in burst.requests))
        wait_until(lambda number=number: (said := poll(running)["snapshot"]["story"]) and said.get("burst") == number)
    wait_until(lambda: any(frame.get("pair") for frame in poll(running)["frames"]))
    running.set_knobs({"prefill_max_tokens": 512})
    begun(running, "check")
    wait_until(lambda: over(running))
    frames = poll(running)["frames"]
    seeds = {frame["burst"]["burst"]: frame["burst"]["seed"] for frame in frames if frame.get("burst")}
    assert seeds == dict.fromkeys((1, 2, 3, 4), 5)
    budgets = [
        now for frame in frames for _, _, changes in frame["knobs"] for _, now in [changes["prefill_max_tokens"]]
    ]
    assert budgets[:4] == [16, 512, 16, None]
    assert running.knobs()["prefill_max_tokens"] == 512
    pairs = [frame["pair"] for frame in poll(running)["frames"] if frame.get("pair")]
    assert plain(pairs[0]["sentence"]).endswith("Each ran once.")
    assert plain(pairs[-1]["sentence"]).startswith("With budget 16, ")
    assert plain(pairs[-1]["sentence"]).endswith("Each ran twice.")
    said = wait_until(
        lambda: (story := poll(running)["snapshot"]["story"]) and story["about"] == "after demo" and story
    )
    assert plain(said["lines"][0]) == plain(pairs[-1]["sentence"])


def test_stop_restores_knobs_but_those_to_keep(running: Playground) -> None:
    running.set_knobs({"prefill_max_tokens": 512, "max_batch_size": 5})
    for keep, restored in (((), 512), (("prefill_max_tokens",), None)):
        begun(running)
        wait_until(lambda: running.knobs()["prefill_max_tokens"] is None)
        assert running.demos.stop(keep=keep)
        assert running.knobs()["prefill_max_tokens"] == restored


def test_one_plays_at_a_time_and_other_tabs_are_told(running: Playground) -> None:
    begun(running)
    with pytest.raises(DemoBusyError, match=r"a demo is playing: it ends in about \d+ s"):
        running.start_demo("short", YOURS)
    assert poll(running, tab_id=MINE)["demo"]["own"] is True
    other = poll(running, tab_id=YOURS)["demo"]
    assert other["own"] is False
    assert other["left_s"] > 60
    assert running.demos.stop(YOURS) is False, "another tab's demo"
    assert running.demos.next(YOURS) is False
    assert running.demos.next(MINE) is True
    wait_until(lambda: over(running))
    assert poll(running, tab_id=YOURS)["demo"] is None


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        ({}, {"prefill_max_tokens": 64, "max_batch_size": 5}),
        ({"prefill_max_tokens": 512}, {"prefill_max_tokens": None}),  # as the demo has set it
    ],
)
def test_a_knob_that_somebody_turns_ends_it_and_stays(running: Playground, before: Any, changes: Any) -> None:
    running.set_knobs(before)
    begun(running)
    running.set_knobs(changes)
    assert over(running)
    assert running.knobs() == {**Knobs().to_dict(), **changes}


TRAFFIC = {"kind": "unique", "max_new_tokens": 4, "seed": 1, "tab_id": MINE}


@pytest.mark.parametrize(
    "act",
    [
        lambda running: running.traffic.burst(size=2, **TRAFFIC),
        lambda running: running.traffic.start_steady(rate=1, spacing="even", **TRAFFIC),
        lambda running: running.chats.new_chat(lanes=[1], tab_id=MINE),
        lambda running: running.stop(tab_id=MINE),
    ],
    ids=["burst", "steady", "new_chat", "stop"],
)
def test_what_its_owner_does_ends_it(running: Playground, act: Callable[[Playground], Any]) -> None:
    begun(running)
    act(running)
    assert over(running)
    assert running.knobs() == Knobs().to_dict()


def test_what_its_owner_sends_ends_it(running: Playground) -> None:
    begun(running)
    (request,) = running.chats.send("Mine", lanes=[2], tab_id=MINE)
    assert [lane["rid"] for lane in poll(running, tab_id=MINE)["own"]["lanes"] if lane["order"]] == [request]
    assert over(running)


def test_refused_calls_and_what_others_send_do_not_end_it(running: Playground) -> None:
    begun(running)
    for refused in (running.chats.new_chat, running.chats.regenerate, partial(running.chats.send, "Mine")):
        with pytest.raises(ValueError, match="tab"):
            refused(lanes=[1], tab_id="")
    running.chats.send("Yours", lanes=[1], tab_id=YOURS)
    running.traffic.burst(size=2, **{**TRAFFIC, "tab_id": YOURS})
    assert not over(running)
    running.stop()
    assert over(running), "Stop all without a tab stops everything"


def test_lanes_that_were_put_aside_are_empty_for_the_page(running: Playground) -> None:
    running.chats.send("Mine", lanes=[1, 7], tab_id=MINE)
    have = ",".join(lane["have"] for lane in poll(running, tab_id=MINE)["own"]["lanes"])
    own = dict(running.tabs.open(MINE).lanes)
    begun(running)
    wait_until(lambda: all(turn.tracked.finished for lane in (1, 7) for turn in own[lane].chat.turns))
    news = {lane["lane"]: lane for lane in poll(running, tab_id=MINE, have=have)["own"]["lanes"]}
    assert news[7]["order"] == [], "the demo has no lane 7, so the page clears it"
    again = ",".join(lane["have"] for lane in news.values())
    assert 7 not in {lane["lane"] for lane in poll(running, tab_id=MINE, have=again)["own"]["lanes"]}
    running.demos.stop(MINE)
    back = {lane["lane"]: lane for lane in poll(running, tab_id=MINE, have=again)["own"]["lanes"]}
    assert [turn["question"] for turn in back[7]["turns"]] == ["Mine"]
    assert back[7]["turns"][0]["text_from"] == 0


def test_a_demo_ends_with_its_engine(running: Playground) -> None:
    begun(running)
    running.engine.close()
    running.demos.next(MINE)
    wait_until(lambda: over(running))


# -- all of them

FACTS = replace(
    A_BURST, knobs={}, saved_tokens=900, shared_head=16, steps=2, longest=LongestStep(4, 59.0, 816), paused=4,
    worst=Gap(1, 4, 9.0, 60.0), usual_ms=5.0, waited=14, waited_for="batch", preempted=3,
    recomputed=900, swapped=40, reader_gap_ms=50.0,
)  # fmt: skip
OF_THE_PLAN = {"budget": "64", "size": "20", "client_prompt": "4000", "client_fit": "72"}  # always known
OF_CUT = {"cut_limit": "45 s", "cut_done": "3", "cut_size": "20"}  # of traffic that was not answered in time
# Of demos with clients, see ``clients.py``.
OF_CLIENTS = {
    *(f"{name}_{of}" for name in ("few", "many") for of in ("clients", "waiting", "first_token", "kv")),
    *("clients_beyond", "clients_within"),
    *("client_prompt", "client_fit", "published_few", "published_many", "published_by"),
}
# Of a GPU that some demos need: its KV blocks hold the requests of 72 clients, which take four seconds to compute.
SIMULATED = replace(INFO, simulated="a GPU", decode_s=0.01, prompt_token_s=2e-5, num_blocks=13_000, max_model_len=8192)
BETTER = replace(
    FACTS, worst=Gap(1, 9, 9.0, 17.0), ttft_p50=113.0, ttft_last=40.0, own_gap_ms=9.0, reader_gap_ms=5.0,
    recomputed=0,
)  # fmt: skip
CHATS = ChatFacts(
    first_token=80.0, step=20.0, steps=50, drafted=0, accepted=0,
    texts=("It is.", "It was."),
)  # fmt: skip
DRAFTED = replace(CHATS, first_token=40.0, step=30.0, steps=9, drafted=100, accepted=95)
CHATS_NAMES = ("start", "before", "after")


def known_figures() -> set[str]:
    """The names of all numbers that captions may contain."""
    blocks = replace(FACTS, waited_for="blocks", preempted=0)
    pairs = ((FACTS, BETTER), (BETTER, FACTS), (FACTS, FACTS), (blocks, blocks))
    of_facts = {name for first, second in pairs for name in figures_of({"first": first, "second": second})}
    for one, other in ((CHATS, DRAFTED), (DRAFTED, CHATS), (CHATS, CHATS)):
        of_facts |= set(figures_of({}, {name: other if name == "after" else one for name in CHATS_NAMES}))
    return {*of_facts, *OF_THE_PLAN, *OF_CLIENTS, *OF_CUT, "long_prompt", "slow_motion"}


def forms_of(*scenes: Scene) -> list[str]:
    """All forms of these scenes' sentences."""
    sentences = [forms for scene in scenes for forms in scene.caption]
    return [form for forms in sentences for form in ((forms,) if isinstance(forms, str) else forms)]


def test_lanes_are_asked_what_the_model_can_answer() -> None:
    assert lane_prompts("SmolLM2-135M-Instruct") == QUESTIONS != lane_prompts("tiny-chat")


OFFERED = [demo for demo in DEMOS.values() if demo is not CLIFF or SIMULATED_GPUS]


@pytest.mark.parametrize("demo", OFFERED, ids=lambda demo: demo.name)
def test_a_demo_names_only_what_there_is(demo: Demo) -> None:
    assert 20 <= plan(demo, None, SIMULATED if demo is CLIFF else INFO, Knobs().to_dict()).whole_s <= 50
    Knobs().changed(dict(demo.knobs))
    sent: set[str] = set()
    shape: DemoBurst | None = None
    for scene in demo.scenes:
        Knobs().changed(dict(scene.knobs))
        assert len(plain(longest(scene.caption))) <= 170, scene.caption
        for form in forms_of(scene):
            named = set(re.findall(r"\{(\w+)\}", form))
            assert named <= known_figures(), form
            changes = ("falls", "rises", "same", "sooner", "later")
            of_traffic = named - {*OF_THE_PLAN, *OF_CUT, "long_prompt", "slow_motion"}
            of_traffic -= {name for name in OF_CLIENTS if name.startswith(("clients_", "published_"))}
            of_one = {name for name in of_traffic if not name.endswith(changes)}
            assert all(any(name.startswith(f"{one}_") for one in sent) for name in of_one), form
            assert len(sent) >= 2 or of_traffic == of_one, form
            assert {"before", "after"} <= sent or not any(name.startswith("chats_") for name in named), form
        said = caption(scene.caption, {**OF_THE_PLAN, **OF_CUT})
        assert said, "it also says something of a run that was cut"
        assert reading_s(said) <= 12
        for target in scene.rings:
            assert target in IDS.values() or target.startswith("rp-") if isinstance(target, str) else target[1] in sent
        if scene.burst:
            assert scene.burst == replace(shape or scene.burst, name=scene.burst.name), "or they cannot be compared"
            shape = scene.burst
            assert scene.burst.kind in LABELS
            assert scene.burst.size <= MAX_SIZE
            sent.add(scene.burst.name)
        if scene.chats:
            assert not scene.stories, "they have the lanes"
            assert scene.chats.name in CHATS_NAMES
            assert len(scene.chats.prompts or lane_prompts("tiny-chat")) == len(scene.chats.lanes)
            sent.add(scene.chats.name)
            sent |= {"chats"} if {"before", "after"} <= sent else set()
        if scene.clients:
            sent.add(scene.clients.name)


def test_a_change_is_named_only_where_it_is_clear() -> None:
    figures = {**OF_THE_PLAN, **figures_of({"first": FACTS, "second": BETTER})}
    assert figures["worst_falls"] == "17 ms instead of 60 ms"
    assert figures["first_token_rises"] == "113 ms instead of 80 ms"
    same = {**OF_THE_PLAN, **figures_of({"first": FACTS, "second": FACTS})}
    assert not [name for name in same if name.endswith(("falls", "rises", "sooner", "later"))]
    assert same["worst_same"] == "60 and 60 ms"
    last = BUDGET.scenes[-1].caption
    assert figures_in(caption(last, figures)).keys() == {"budget", "worst_falls", "first_token_later"}
    assert figures_in(caption(last, same)).keys() == {"budget", "worst_same"}
    assert figures_in(caption(last, {**OF_THE_PLAN, **OF_CUT})) == OF_CUT
    assert figures["recomputed_falls"] == "0 instead of 900"


def test_without_readers_there_is_no_pause_to_ring_or_to_compare() -> None:
    alone = replace(FACTS, worst=None, streaming=0)
    assert ring(("gap", "first"), {"first": alone}) is None
    assert not [name for name in figures_of({"first": alone, "second": FACTS}) if name.startswith("worst")]


@pytest.mark.parametrize("demo", DEMOS.values(), ids=lambda demo: demo.name)
def test_the_answers_to_its_question_exclude_each_other_and_its_last_caption_names_what_decides(demo: Demo) -> None:
    question, *others, last = demo.scenes
    assert 2 <= len(question.answers) <= 3 and not any(scene.answers for scene in (*others, last))
    assert len({figure.rsplit("_", 1)[0] for figure in question.answers}) == 1, "of one figure, which has one verdict"
    assert len(plain(longest(question.caption))) <= 125, "one line of a small screen"
    named = [set(re.findall(r"\{(\w+)\}", form)) for form in forms_of(last)]
    assert all(any(figure in figures for figures in named) for figure in question.answers)
    assert CUT in forms_of(last)


def test_times_in_slow_motion_are_marked_in_captions_and_rings() -> None:
    slow, better = (replace(facts, factors=(5.0,)) for facts in (FACTS, BETTER))
    figures = {**OF_THE_PLAN, **figures_of({"first": slow, "second": better})}
    assert (figures["worst_falls"], figures["first_worst"]) == ("17 ms instead of 60 ms at ×5", "60 ms at ×5")
    assert figures_of({"first": slow, "second": slow})["worst_same"] == "60 and 60 ms at ×5"
    ringed = ring(("gap", "first"), {"first": slow})
    assert ringed == {"of": "gap", "request": 1, "step": 4, "label": "a pause of 60 ms at ×5"}
    chats = figures_of({}, {"before": replace(CHATS, factors=(2.0,)), "after": replace(DRAFTED, factors=(2.0,))})
    assert (chats["before_first_token"], chats["after_step"]) == ("80 ms at ×2", "30 ms at ×2")
    assert chats["chats_step_rises"] == "30 ms instead of 20 ms at ×2"


@pytest.mark.parametrize("factors", [(1.0,), (2.0,), (1.0, 5.0)])
def test_times_in_different_slow_motion_are_not_compared(factors: tuple[float, ...]) -> None:
    one, other = replace(FACTS, factors=factors), replace(BETTER, factors=(1.0, 5.0))
    figures = figures_of({"first": one, "second": other})
    assert not [name for name in figures if name.startswith(("worst_", "gap_"))]
    assert figures_of({"second": other})["second_worst"] == "17 ms partly at ×5"


def test_every_time_of_a_caption_has_its_unit_and_mark() -> None:
    figures = figures_of({"first": replace(FACTS, factors=(5.0,))}, {"before": replace(CHATS, factors=(5.0,))})
    times = {name for name, text in figures.items() if text.endswith(" ms at ×5")}
    assert {name.removeprefix("first_") for name in times if name.startswith("first_")} == {
        "longest", "worst", "first_token", "last_token", "gap", "reader",
    }  # fmt: skip
    assert {"before_first_token", "before_step"} <= times
    for form in (form for demo in DEMOS.values() for form in forms_of(*demo.scenes)):
        assert not re.search(r"\} ?m?s\b", form), "a unit beside a figure would come after its mark"


def test_chats_that_were_asked_twice_are_compared() -> None:
    figures = figures_of({}, {"before": CHATS, "after": DRAFTED})
    last = DEMOS["speculation"].scenes[-1].caption
    assert figures_in(caption(last, figures)) == {
        "chats_steps_falls": "9 instead of 50", "chats_same": "2", "chats_step_later": "later",
    }  # fmt: skip
    other = figures_of({}, {"before": CHATS, "after": replace(DRAFTED, texts=("It is.", "It is."))})
    assert "chats_same" not in figures_in(caption(last, other))


CLAIMS = {  # claims that a caption may make only if it contains one of these numbers
    r"no clear difference": r"_same\}",
    r"longer:|more steps:": r"_rises\}",
    r"The price": r"_(later|rises)\}",
    r"lost (their|its) blocks": r"preempted\}",
    r"waited for a place": r"waited_for_batch\}",
    r"waited for blocks": r"waited_for_blocks\}",
    r"stay the same": r"chats_same\}",
}


@pytest.mark.parametrize("demo", DEMOS.values(), ids=lambda demo: demo.name)
def test_what_depends_on_the_run_is_said_only_with_its_figure(demo: Demo) -> None:
    for form in forms_of(*demo.scenes):
        for claim, figure in CLAIMS.items():
            assert not re.search(claim, form) or re.search(figure, form), form


PAIRS = st.builds(
    replace,
    st.just(FACTS),
    worst=st.none() | st.floats(1, 200).map(lambda ms: Gap(1, 4, 9.0, ms)),
    ttft_p50=st.floats(1, 500),
    ttft_last=st.floats(1, 500),
    own_gap_ms=st.none() | st.floats(1, 50),
    preempted=st.integers(0, 3),
    waited=st.integers(0, 20),
    waited_for=st.sampled_from(["blocks", "batch", None]),
)


@given(first=PAIRS, second=PAIRS)
def test_a_caption_never_contradicts_the_rule(first: BurstFacts, second: BurstFacts) -> None:
    def verdict(name: str) -> str:
        values = [getattr(facts, name) for facts in (first, second)]
        if name == "worst":
            values = [gap and gap.ms for gap in values]
        return difference(values[:1], values[1:], better="lower").verdict

    figures = {**OF_THE_PLAN, **OF_CUT, **figures_of({"first": first, "second": second})}
    told = {name: figures_in(caption(demo.scenes[-1].caption, figures)) for name, demo in DEMOS.items()}
    for demo, figure, name in (("budget", "worst", "worst"), ("batch", "gap", "own_gap_ms")):
        changes = {"better": "falls", "worse": "rises", "within": "same"}
        expected = {f"{figure}_{changes[verdict(name)]}"} if verdict(name) in changes else set()
        assert {one for one in told[demo] if one.startswith(f"{figure}_")} == expected
    first_tokens = verdict("ttft_p50"), verdict("ttft_last")
    price = {"first_token_later", "last_token_later"} & told["budget"].keys()
    assert bool(price) == ("worse" in first_tokens)
