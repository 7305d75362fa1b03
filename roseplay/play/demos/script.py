"""The parts of a demo: settings, traffic, and captions with figures of the run.

``plan.py`` chooses the size of its bursts and its slow motion for the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roseplay.traffic.prompts import KINDS, PromptMix

Forms = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DemoBurst:
    """A burst of a demo, sent with an empty prefix cache; bursts with the same seed have the same prompts.

    Attributes:
        name: by which captions and rings refer to it.
        kind: as in ``bursts.LABELS``.
        answer: tokens of each answer.
        mix: how its prompts relate; by default, as usual for its kind.
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
    """One caption, and what happens before it is shown. It lasts until the caption is read and nothing more happens.

    Attributes:
        caption: sentences, each as a list of forms. The first form whose figures are all known is shown; a sentence
            without such a form is left out. Figures are placeholders such as ``{first_longest}``, listed in
            ``caption_figures.py``; for ``**`` and ``[[ ]]`` see ``story.text.segments``.
        knobs: set when it begins.
        stories: whether the lanes are kept streaming.
        burst: sent when it begins; the scene then lasts until it is answered, at most ``plan.ACT_S``.
        clients: send from its beginning to the end of the demo, in place of earlier ones; the scene then lasts as long
            as ``ClientSize.takes_s``, at most ``plan.ACT_S``.
        settles: lasts as long as the last scene with new clients, while these go on.
        rings: what to highlight, see ``caption_figures.ring``.
        read_s: reading time of its caption; by default derived from its length.
    """

    caption: tuple[Forms, ...]
    knobs: Mapping[str, Any] = field(default_factory=dict)
    stories: bool = True
    burst: DemoBurst | None = None
    clients: DemoClients | None = None
    settles: bool = False
    rings: tuple[str, ...] = ()
    read_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A demo.

    Attributes:
        name: in addresses and events.
        shows: what it shows, in a few words.
        knobs: set at its beginning; all others are left as they are.
        scenes: the last one's caption compares. There are either bursts, all of the same size, or clients.
        after: what to try afterwards.
        fills_pool: whether its bursts must need more KV blocks than there are.
        absent_simulated: why a simulated GPU cannot show it, if so.
    """

    name: str
    title: str
    shows: str
    knobs: Mapping[str, Any]
    scenes: tuple[Scene, ...]
    after: str
    fills_pool: bool = False
    absent_simulated: str | None = None
