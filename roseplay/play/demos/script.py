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
Ring = str | tuple[str, str]


def lane_prompts(model: str) -> tuple[str, ...]:
    """Returns what the lanes are asked, in their order."""
    return STORIES if model == EMBEDDED else QUESTIONS


@dataclass(frozen=True, kw_only=True)
class DemoBurst:
    """A burst of a demo, which begins with an empty prefix cache; bursts with the same seed have the same prompts.

    Attributes:
        name: by which captions and rings refer to it.
        kind: as in ``bursts.LABELS``.
        answer: tokens of each answer.
        mix: how its prompts relate; by default, as usual for its kind.
        tenant: whose it is.
    """

    name: str
    kind: str
    size: int = 20
    answer: int = 64
    seed: int = 1
    mix: PromptMix | None = None
    tenant: str | None = None

    @property
    def prompts(self) -> PromptMix:
        return self.mix or KINDS[self.kind]


@dataclass(frozen=True, kw_only=True)
class DemoChats:
    """Prompts in the lanes, answered greedily, and measured together.

    Attributes:
        name: by which captions refer to them.
        prompts: one for each of ``lanes``; by default what lanes are asked.
        turn: each begins a ``new`` chat, continues its lane's chat (``next``), or replaces the lane's last question (``again``).
        answer: the most tokens of an answer.
        tenant: whose they are.
    """

    name: str
    prompts: tuple[str, ...] = ()
    lanes: tuple[int, ...] = (1, 2, 3, 4)
    turn: Literal["new", "next", "again"] = "new"
    answer: int = 64
    tenant: str | None = None


@dataclass(frozen=True, kw_only=True)
class DemoClients:
    """Clients that send one prompt after the other; ``clients.py`` chooses the sizes of their requests.

    Attributes:
        name: by which captions refer to them.
        count: how many there are.
    """

    name: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One caption, and what happens while it is shown. It lasts until the caption is read and its traffic is answered.

    Attributes:
        caption: its sentences, see ``story.caption``; ``caption_figures.py`` lists the figures.
        knobs: set when it begins.
        stories: whether the lanes are kept streaming; not with ``chats``.
        answers: makes the caption a question: possible answers, each by the figure that makes it right if it is known at
            the end. The scene then lasts until one is chosen, and the demo's last caption says whether it was right.
        burst: sent when it begins; the scene then lasts until it is answered, as far as the demo as a whole takes at most
            ``player.LONGEST`` times as long as planned.
        chats: the same for prompts in the lanes, which are sent after the burst if there is one.
        clients: send from its beginning to the end of the demo, in place of earlier ones; the scene then lasts as long
            as ``ClientSize.takes_s``, at most ``plan.ACT_S``.
        settles: lasts as long as the last scene with new clients, while these go on.
        rings: what to highlight: elements of the page by ID, also at the time of a burst (``(id, name)``); the token after
            the pause of a burst (``("gap", name)``), a burst's longest step (``("step", name)``), an answer of it that
            was preempted (``("preempted", name)``), the rows in Steps of a burst or chats (``("rows", name)``; chats with
            their longest TTFT), or those of chats with the number of their steps (``("steps", name)``).
        read_s: reading time of its caption; by default derived from its length.
    """

    caption: tuple[Forms, ...]
    answers: Mapping[str, str] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)
    stories: bool = False
    burst: DemoBurst | None = None
    chats: DemoChats | None = None
    clients: DemoClients | None = None
    settles: bool = False
    rings: tuple[Ring, ...] = ()
    read_s: float | None = None


def scene(first: Forms, *others: Forms, **parts: Any) -> Scene:
    """Returns a scene with these sentences; ``CUT`` is a form of the first one if that has several."""
    return Scene(caption=(first if isinstance(first, str) else (*first, CUT), *others), **parts)


def reading(*caption: Forms, **parts: Any) -> Scene:
    """Returns a scene during which people read stories in the lanes."""
    return scene(*caption, stories=True, **parts)


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A demo.

    Attributes:
        name: in addresses and events.
        shows: what it shows, in a few words.
        knobs: set at its beginning; all others are left as they are.
        scenes: the first one asks, and the last one's caption compares. There are bursts, all of the same size, chats, or
            both; or there are clients.
        after: what to try afterwards.
        watched_s: the least time in which its longest scene's traffic is answered; slow motion makes it last so long.
        fills_pool: whether its bursts must need more KV blocks than there are.
        slow_prompts: whether it is about steps that last longer because of their prompts.
        readers: how many lanes are kept streaming in scenes with stories.
        conclude: called before the last scene with the facts of its bursts; returns more figures for its caption.
    """

    name: str
    title: str
    shows: str
    knobs: Mapping[str, Any]
    scenes: tuple[Scene, ...]
    after: str
    watched_s: float = 1.0
    fills_pool: bool = False
    slow_prompts: bool = False
    readers: int = len(STORIES)
    conclude: Callable[[Mapping[str, BurstFacts]], Mapping[str, str]] = field(default=lambda bursts: {})
