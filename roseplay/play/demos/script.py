"""What a demo is made of: settings, traffic, and captions whose figures are those of the run.

How large its bursts are, and whether it runs in slow motion, ``plan.py`` decides for the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roseplay.traffic.prompts import KINDS, PromptMix

Forms = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DemoBurst:
    """A burst of a demo, sent on an empty prefix cache; two with one seed have the same prompts.

    Attributes:
        name: by which captions and rings refer to it.
        kind: as in ``bursts.LABELS``.
        answer: tokens of each answer.
        mix: how its prompts relate; by default as those of its kind.
    """

    name: str
    kind: str
    size: int = 20
    answer: int = 64
    seed: int = 1
    mix: PromptMix | None = None

    @property
    def prompts(self) -> PromptMix:
        return self.mix or KINDS[self.kind]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One caption, and what happens before it is shown. It lasts until the caption was read and nothing more happens.

    Attributes:
        caption: sentences, each as its forms: the first form whose figures are all known is shown, and a sentence with
            no such form is left out. A figure is a placeholder such as ``{first_longest}``; ``caption_figures.py`` says which there
            are and when. ``**`` and ``[[ ]]`` as in ``story.text.segments``.
        knobs: set when it begins.
        stories: whether the lanes are kept streaming.
        burst: sent when it begins; the scene then lasts until it is answered, at most ``plan.ACT_S``.
        rings: what is pointed at, see ``caption_figures.ring``.
        read_s: how long its caption is read; by default, as long as its words take.
    """

    caption: tuple[Forms, ...]
    knobs: Mapping[str, Any] = field(default_factory=dict)
    stories: bool = True
    burst: DemoBurst | None = None
    rings: tuple[str, ...] = ()
    read_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A demo.

    Attributes:
        name: in addresses and events.
        shows: what it shows, in a few words.
        knobs: with which it begins; all others are as they were.
        scenes: the last one's caption compares. All bursts are equally large, so that they can be compared.
        after: what to try afterwards.
        fills_pool: its bursts have to need more KV blocks than there are.
    """

    name: str
    title: str
    shows: str
    knobs: Mapping[str, Any]
    scenes: tuple[Scene, ...]
    after: str
    fills_pool: bool = False
