"""The parts of a demo: settings, traffic, and captions with figures of the run.

``plan.py`` chooses the size of its bursts and its slow motion for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from roseplay.own_models import EMBEDDED
from roseplay.play.story.burst_facts import BurstFacts
from roseplay.play.story.caption import Forms
from roseplay.traffic.prompts import KINDS, PromptMix

SLOW_MOTION = "It runs in slow motion: “at {slow_motion}” marks stretched times."
NO_SHARING: Mapping[str, Any] = {"prefix_cache": False, "same_step_sharing": False}  # knobs
# What the lanes are asked, and answer at length: of the embedded model, which knows little else, and of any other one, as
# even one of a hundred million parameters answers it sensibly.
STORIES = (
    "Tell me a story about a fox.",
    "Tell me a story about a robot.",
    "Tell me a story about a clock.",
    "Tell me a story about a cat.",
)
QUESTIONS = (
    "Why is sleep important?",
    "Give me three tips for learning a language.",
    "What makes a good teacher?",
    "What are the benefits of walking?",
)
# What captions of figures say if the run was cut before they were known.
CUT = "**After {cut_limit} only {cut_done} of {cut_size} answers were done,** too few to compare."
Place = str | tuple[str, str]


def lane_prompts(model: str) -> tuple[str, ...]:
    """Returns what the lanes are asked, in their order."""
    return STORIES if model == EMBEDDED else QUESTIONS


@dataclass(frozen=True, kw_only=True)
class DemoBurst:
    """A burst of a demo, which begins with an empty prefix cache; bursts with the same seed have the same prompts."""

    name: str  # by which captions and rings refer to it
    kind: str  # as in ``bursts.LABELS``
    size: int = 20
    answer: int = 64  # tokens of each answer
    seed: int = 1
    mix: PromptMix | None = None  # how its prompts relate; by default, as usual for its kind
    tenant: str | None = None  # whose it is

    @property
    def prompts(self) -> PromptMix:
        return self.mix or KINDS[self.kind]


@dataclass(frozen=True, kw_only=True)
class DemoChats:
    """Prompts in the lanes, answered greedily, and measured together."""

    name: str  # by which captions refer to them
    prompts: tuple[str, ...] = ()  # one for each of ``lanes``; by default what lanes are asked
    lanes: tuple[int, ...] = (1, 2, 3, 4)
    # Each begins a ``new`` chat, continues its lane's chat (``next``), or replaces the lane's last question
    # (``again``).
    turn: Literal["new", "next", "again"] = "new"
    answer: int = 64  # the most tokens of an answer
    tenant: str | None = None  # whose they are


@dataclass(frozen=True, kw_only=True)
class DemoClients:
    """Clients that send one prompt after the other; ``clients.py`` chooses the sizes of their requests."""

    name: str  # by which captions refer to them
    count: int  # how many there are


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One caption, and what happens while it is shown. It lasts until the caption is read and its traffic is answered."""

    caption: tuple[Forms, ...]  # its sentences, see ``story.caption``; ``caption_figures.py`` lists the figures
    # Makes the caption a question: possible answers, each by the figure that makes it right if it is known at the end.
    # The scene then lasts until one is chosen, and the demo's last caption says whether it was right.
    answers: Mapping[str, str] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)  # set when it begins
    stories: bool = False  # whether the lanes are kept streaming; not with ``chats``
    # Sent when it begins; the scene then lasts until it is answered, as far as the demo as a whole takes at most
    # ``player.LONGEST`` times as long as planned.
    burst: DemoBurst | None = None
    chats: DemoChats | None = None  # the same for prompts in the lanes, which are sent after the burst if there is one
    # Send from its beginning to the end of the demo, in place of earlier ones; the scene then lasts as long as
    # ``ClientSize.takes_s``, at most ``plan.ACT_S``.
    clients: DemoClients | None = None
    settles: bool = False  # lasts as long as the last scene with new clients, while these go on
    # What to highlight: elements of the page by ID, also at the time of a burst (``(id, name)``); the token after the
    # pause of a burst (``("gap", name)``), a burst's longest step (``("step", name)``), an answer of it that was
    # preempted (``("preempted", name)``), the rows in Steps of a burst or chats (``("rows", name)``; chats with their
    # longest TTFT), or those of chats with the number of their steps (``("steps", name)``).
    rings: tuple[Place, ...] = ()
    read_s: float | None = None  # reading time of its caption; by default derived from its length


def scene(first: Forms, *others: Forms, **parts: Any) -> Scene:
    """Returns a scene with these sentences; ``CUT`` is a form of the first one if that has several."""
    return Scene(caption=(first if isinstance(first, str) else (*first, CUT), *others), **parts)


def reading(*caption: Forms, **parts: Any) -> Scene:
    """Returns a scene during which people read stories in the lanes."""
    return scene(*caption, stories=True, **parts)


@dataclass(frozen=True, kw_only=True)
class Demo:
    name: str  # in addresses and events
    title: str
    shows: str  # what it shows, in a few words
    knobs: Mapping[str, Any]  # set at its beginning; all others are left as they are
    # The first one asks, and the last one's caption compares. There are bursts, all of the same size, chats, or both;
    # or there are clients.
    scenes: tuple[Scene, ...]
    after: str  # what to try afterwards
    # The least time in which its longest scene's traffic is answered; slow motion makes it last so long.
    watched_s: float = 1.0
    fills_pool: bool = False  # whether its bursts must need more KV blocks than there are
    slow_prompts: bool = False  # whether it is about steps that last longer because of their prompts
    readers: int = len(STORIES)  # how many lanes are kept streaming in scenes with stories
    # Called before the last scene with the facts of its bursts; returns more figures for its caption.
    conclude: Callable[[Mapping[str, BurstFacts]], Mapping[str, str]] = field(default=lambda bursts: {})
