"""Plays two compared bursts once more, in the order A B B A: a machine that grows slower or faster shows no effect."""

from __future__ import annotations

from collections.abc import Mapping

from roseplay.formats.segments import plain
from roseplay.play.demos.plan import SPANS_MS, Plan, reading_s
from roseplay.play.demos.script import CUT, STORIES, Demo, DemoBurst, Scene
from roseplay.play.story.burst_facts import BurstFacts
from roseplay.play.story.caption import caption, longest
from roseplay.play.story.pair import BEFORE_AND_AFTER, before_and_after, comparable
from roseplay.play.story.story import Story
from roseplay.play.story.words import named_change

CHECK = "check"  # its name beside those of the demos
_BEGINS_S = 2.0  # until the answers beside a burst stream
_EFFECT, *_PRICE = BEFORE_AND_AFTER[1:]
_CAPTION = (
    BEFORE_AND_AFTER[0],
    (*_EFFECT, CUT, "**These bursts are not like the first two:** nothing more is known."),
    *_PRICE,
)


def check_plan(story: Story) -> Plan:
    """Returns the plan of a demo that repeats the bursts of the newest picture, and at its end shows that of all.

    Raises:
        ValueError: there are none, or they were sent beside more answers than a demo keeps streaming.
    """
    if (pair := story.newest_pair()) is None:
        raise ValueError("there are no two bursts to check: press Burst, move one setting, and press Burst again")
    before, after = pair
    a, b = before[-1], after[-1]
    readers = min(a.streaming, b.streaming)
    if readers > len(STORIES):
        raise ValueError(f"a check keeps {len(STORIES)} answers streaming, and {readers} streamed beside these bursts")

    def conclude(bursts: Mapping[str, BurstFacts]) -> dict[str, str]:
        a_again, b_again = bursts.get("a"), bursts.get("b")
        if not (a_again and b_again and comparable(a_again, b) and comparable(b_again, a)):
            return {}
        befores, afters = [*before, a_again], [*after, b_again]
        story.compare(befores, afters)
        return before_and_after(befores, afters)

    demo = Demo(
        name=CHECK,
        title="Check",
        shows="two bursts once more",
        knobs={},
        scenes=(_again("b", b, a, readers), _again("a", a, b, readers), Scene(caption=_CAPTION, rings=("rp-pair",))),
        after="They ran in the order A B B A, in which a machine that grows slower or faster shows no difference.",
        readers=readers,
        conclude=conclude,
    )
    seconds = tuple(_BEGINS_S + (facts.ended - facts.arrived) / 1000 for facts in (b, a))
    return Plan(
        demo=demo, seconds=(*seconds, reading_s(longest(_CAPTION))), slow_motion=1.0, budget=0, span_ms=SPANS_MS[1]
    )


def _again(name: str, facts: BurstFacts, other: BurstFacts, readers: int) -> Scene:
    """Returns the scene that repeats a burst, whose settings are named as they differ from the other one's."""
    setting = caption(BEFORE_AND_AFTER[:1], named_change(facts.knobs, other.knobs))
    assert facts.kind and facts.answer and facts.seed is not None  # else it was not compared
    burst = DemoBurst(name=name, kind=facts.kind, size=facts.prompts, answer=facts.answer, seed=facts.seed)
    return Scene(
        caption=(f"{plain(setting)} the same {facts.prompts} prompts arrive once more.",),
        knobs=facts.knobs,
        stories=readers > 0,
        burst=burst,
        read_s=0.0,
    )
