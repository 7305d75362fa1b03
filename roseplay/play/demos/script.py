"""What a demo is made of: settings, traffic, and captions whose figures are those of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Forms = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DemoBurst:
    """A burst of a demo, sent on an empty prefix cache; two with one seed have the same prompts.

    Attributes:
        name: by which captions and rings refer to it.
        kind: as in ``bursts.LABELS``.
        answer: tokens of each answer.
    """

    name: str
    kind: str
    size: int = 20
    answer: int = 64
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One caption, and what happens before it is shown.

    Attributes:
        caption: sentences, each as its forms: the first form whose figures are all known is shown, and a sentence with
            no such form is left out. A figure is a placeholder such as ``{first_longest}``; ``figures.py`` says which there
            are and when. ``**`` and ``[[ ]]`` as in ``story.text.segments``.
        hold_s: how long it stands.
        knobs: set when it begins.
        stories: whether the lanes are kept streaming.
        burst: sent when it begins. The scene lasts at least until this burst has been computed.
        rings: what is pointed at, see ``figures.ring``.
    """

    caption: tuple[Forms, ...]
    hold_s: float
    knobs: Mapping[str, Any] = field(default_factory=dict)
    stories: bool = True
    burst: DemoBurst | None = None
    rings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A demo.

    Attributes:
        name: in addresses and events.
        shows: what it shows, in a few words.
        knobs: with which it begins; all others are as they were.
        scenes: the last one's caption compares.
        after: what to try afterwards.
    """

    name: str
    title: str
    shows: str
    knobs: Mapping[str, Any]
    scenes: tuple[Scene, ...]
    after: str

    @property
    def seconds(self) -> int:
        """About how long it takes."""
        bursts = sum(scene.burst is not None for scene in self.scenes)
        return round(sum(scene.hold_s for scene in self.scenes) + bursts)
