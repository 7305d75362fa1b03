"""Fits a demo to a model's speed: the size of its bursts, slow motion, and the length of its scenes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roseplay.config import EngineConfig, Knobs
from roseplay.core.info import EngineInfo
from roseplay.play.demos.catalog import STORIES
from roseplay.play.demos.clients import ClientSize, client_size
from roseplay.play.demos.script import Demo, DemoBurst, Scene
from roseplay.play.story.text import Segments, plain, segments
from roseplay.traffic.pace import SHRINK, Conditions, Size, Speed, answered_s, fitted, slow_motion

ACT_S = 12.0  # the most time for a scene
# Planned time for a burst, and for one that fills the pool; with slack, since machines do other work, too.
ANSWERED_S, FILLED_S = 7.0, 9.5
WATCHED_S = 1.0  # the least time for a burst
BUDGETS, _PORTIONS = (64, 32, 16), 6  # prefill budgets, and the least number of portions of a burst's prompts
STORY_TOKENS = 160  # per story
SPANS_MS = (3000, 15_000, 60_000)  # of the time charts; the last one for demos with clients
_NOTICE_S, _CHARACTERS_PER_S = 1.5, 25  # a reader first looks up, then reads
_STORY_BEGINS_S = 1.0
_OVERFULL = 1.25  # times the pool's tokens, so that memory does run out


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A demo for one model.

    Attributes:
        demo: with the bursts and knobs to be played.
        seconds: approximate length of each scene.
        slow_motion: the factor.
        budget: the prefill budget, for a demo that sets one.
        half: the smaller batch, for a demo that fills the pool.
        span_ms: the time that the charts show.
        client: what each client sends, for a demo with clients.
    """

    demo: Demo
    seconds: tuple[float, ...]
    slow_motion: float
    budget: int
    half: int
    span_ms: int
    client: ClientSize | None = None

    @property
    def whole_s(self) -> int:
        return round(sum(self.seconds))


def reading_s(caption: Segments) -> float:
    """Returns how long people need to read a caption and look at its subject, in seconds."""
    return _NOTICE_S + len(plain(caption)) / _CHARACTERS_PER_S


def plan(
    demo: Demo, speed: Speed | None, info: EngineInfo, knobs: Mapping[str, Any], config: EngineConfig | None = None
) -> Plan:
    """Returns a demo fitted to this speed; if the speed is unknown, unchanged and without slow motion.

    Args:
        knobs: the engine's; the demo changes some of them.
        config: the engine's, by default that of an engine with default settings.

    Raises:
        ValueError: the demo cannot be shown, since the model is too slow to fill the pool, since it differs only on a
            simulated GPU, or only on a real one, or since this engine cannot have one of its knobs.
    """
    for changes in (demo.knobs, *(scene.knobs for scene in demo.scenes)):
        info.check_knobs(Knobs().changed(changes))
    if info.simulated and demo.absent_simulated:
        raise ValueError(f"on a simulated GPU {demo.absent_simulated}")
    if any(scene.clients for scene in demo.scenes):
        return _with_clients(demo, client_size(info, config or EngineConfig()))
    under = list(_conditions(demo, knobs))
    size = _size_of(next(burst for burst, _ in under))
    if speed is None:
        takes_s, factor = [WATCHED_S] * len(under), 1.0
    else:
        limit = FILLED_S if demo.fills_pool else ANSWERED_S
        largest = fitted(size, lambda one: max(answered_s(one, speed, now) for _, now in under), limit)
        size = _filling(demo, largest, under[0][1].sharing, info) if demo.fills_pool else largest
        takes_s = [answered_s(size, speed, now) for _, now in under]
        factor = slow_motion(max(takes_s), WATCHED_S)
        takes_s = [factor * one for one in takes_s]
    budget = _budget(size.prompt_tokens(sharing=under[-1][1].sharing))
    sized = replace(demo, knobs={**demo.knobs, "slow_motion": factor}, scenes=tuple(_sized(demo, size, budget)))
    longest = iter(takes_s)
    seconds = tuple(_lasts_s(scene, next(longest) if scene.burst else 0.0) for scene in demo.scenes)
    span_ms = SPANS_MS[1 if max(takes_s) * 1000 > SPANS_MS[0] else 0]
    return Plan(demo=sized, seconds=seconds, slow_motion=factor, budget=budget, half=_half(size), span_ms=span_ms)


def _with_clients(demo: Demo, size: ClientSize) -> Plan:
    before, wave_s, seconds = 0, 0.0, []
    for scene in demo.scenes:
        if scene.clients:
            wave_s, before = size.takes_s(scene.clients, before), scene.clients.count
        lasts_s = _lasts_s(scene, 0.0)
        seconds.append(min(ACT_S, max(lasts_s, wave_s)) if scene.clients or scene.settles else lasts_s)
    scenes = tuple(replace(scene, read_s=lasts_s) for scene, lasts_s in zip(demo.scenes, seconds, strict=True))
    sized = replace(demo, knobs={**demo.knobs, "slow_motion": 1.0}, scenes=scenes)
    return Plan(
        demo=sized, seconds=tuple(seconds), slow_motion=1.0, budget=0, half=0, span_ms=SPANS_MS[-1], client=size
    )


def _size_of(burst: DemoBurst) -> Size:
    return Size(requests=burst.size, answer=burst.answer, mix=burst.prompts)


def _conditions(demo: Demo, knobs: Mapping[str, Any]) -> Iterator[tuple[DemoBurst, Conditions]]:
    """Yields each burst with the conditions under which it is answered."""
    now = {**knobs, **demo.knobs}
    for scene in demo.scenes:
        now.update(scene.knobs)
        if scene.burst:
            others = len(STORIES) if scene.stories else 0
            limits = [now[name] for name in ("prefill_max_tokens", "step_max_tokens") if now[name]]
            yield (
                scene.burst,
                Conditions(
                    places=max(1, now["max_batch_size"] - others),
                    others=others,
                    budget=min(limits, default=None),
                    sharing=bool(now["same_step_sharing"]),
                ),
            )


def _half(size: Size) -> int:
    """Returns a batch size for half of a burst beside the stories."""
    return len(STORIES) + size.requests // 2


def _budget(prompt_tokens: int) -> int:
    """Returns the largest prefill budget that cuts the prompt tokens into enough portions, otherwise the smallest."""
    return next((budget for budget in BUDGETS if _PORTIONS * budget <= prompt_tokens), BUDGETS[-1])


def _sized(demo: Demo, size: Size, budget: int) -> Iterator[Scene]:
    for scene in demo.scenes:
        burst, knobs = scene.burst, dict(scene.knobs)
        if knobs.get("prefill_max_tokens"):
            knobs["prefill_max_tokens"] = min(budget, knobs["prefill_max_tokens"])
        if demo.fills_pool and "max_batch_size" in knobs:
            knobs["max_batch_size"] = _half(size)
        if burst:
            burst = replace(burst, size=size.requests, answer=size.answer, mix=size.mix)
        yield replace(scene, burst=burst, knobs=knobs)


def _filling(demo: Demo, largest: Size, sharing: bool, info: EngineInfo) -> Size:
    """Returns the smallest size up to ``largest`` that clearly exceeds the pool; raises ``ValueError`` if none does."""
    stories = len(STORIES) * STORY_TOKENS
    pool = (info.num_blocks - 1) * info.block_size

    def needed(size: Size) -> int:
        return size.prompt_tokens(sharing=sharing) + size.requests * size.answer + stories

    if needed(largest) < _OVERFULL * pool:
        blocks = int(needed(largest) / _OVERFULL) // info.block_size
        raise ValueError(
            f"{demo.title} shows what happens when memory runs out, and the KV blocks here hold {pool:,} tokens, more than "
            f"this demo fills in {ACT_S:g} s: start with --num-blocks {blocks} to see it"
        )
    # The first size whose next smaller one would no longer be enough.
    return fitted(largest, lambda one: needed(one.scaled(SHRINK)), _OVERFULL * pool)


def _lasts_s(scene: Scene, burst_s: float) -> float:
    words = segments(" ".join(max(forms, key=len) for forms in scene.caption))
    read_s = reading_s(words) if scene.read_s is None else scene.read_s
    return max(read_s, _STORY_BEGINS_S + burst_s) if scene.burst else read_s
