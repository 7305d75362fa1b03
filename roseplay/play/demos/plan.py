"""Fits a demo to a model's speed: the size of its bursts, slow motion, and the length of its scenes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roseplay.config import EngineConfig, Knobs
from roseplay.core.info import EngineInfo
from roseplay.formats.segments import plain
from roseplay.play.demos.clients import ClientSize, client_size
from roseplay.play.demos.script import STORIES, Demo, Scene
from roseplay.play.story.caption import Caption, longest
from roseplay.traffic.pace import LEAST_ANSWER, SHRINK, Conditions, Size, Speed, answered_s, fitted, slow_motion
from roseplay.traffic.prompts import PromptMix

ACT_S = 12.0  # the most time that is planned for a scene; on a machine that does other work, too, it lasts longer
ANSWERED_S = 7.0  # planned time for a burst
FILLED_S = 10.0  # the longest estimated time in which a burst may fill the pool
BUDGETS, _PORTIONS = (64, 32, 16), 6  # prefill budgets, and the least number of portions of a burst's prompts
STORY_TOKENS = 160  # per story
SPANS_MS = (3000, 15_000, 60_000)  # of the time charts; the last one for demos with clients
_NOTICE_S, _CHARACTERS_PER_S = 1.5, 25  # a reader first looks up, then reads
_CHOOSING_S = 2.0  # to choose an answer
_STORY_BEGINS_S = 1.0
_LEAST_PREFILL = 0.25  # times a step without prompts, so that prompts visibly take time
_OVERFULL = 1.25  # times the pool's tokens, so that memory does run out


@dataclass(frozen=True, kw_only=True)
class Plan:
    demo: Demo  # with the bursts and knobs to be played
    seconds: tuple[float, ...]  # approximate length of each scene
    slow_motion: float  # the factor
    budget: int  # the prefill budget, for a demo that sets one
    span_ms: int  # the time that the charts show
    client: ClientSize | None = None  # what each client sends, for a demo with clients

    @property
    def whole_s(self) -> int:
        return round(sum(self.seconds))


def reading_s(caption: Caption) -> float:
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
        ValueError: the demo cannot be shown, since the model is too slow to fill the pool or computes prompts too fast,
            since it differs only on a simulated GPU, or since this engine cannot have one of its knobs.
    """
    demo = _settable(demo, info, Knobs().changed(knobs))
    if any(scene.clients for scene in demo.scenes):
        return _with_clients(demo, client_size(info, config or EngineConfig()))
    acts = list(_acts(demo, knobs))
    sharing = all(under.sharing for _, under in acts)
    usual = size = _size_of(next((replace(scene, chats=None) for scene, _ in acts if scene.burst), acts[0][0]))
    takes_s, factor = [demo.watched_s] * len(acts), 1.0
    if speed is not None:

        def estimates(size: Size) -> list[float]:
            return [answered_s(_size_of(_sized(scene, size, usual)), speed, under) for scene, under in acts]

        size = fitted(usual, lambda one: max(estimates(one)), FILLED_S if demo.fills_pool else ANSWERED_S)
        if demo.fills_pool:
            size = _filling(demo, size, sharing, info)
        if demo.slow_prompts:
            _check_prompts_take_time(demo, size, acts[0][1], speed)
        takes_s = estimates(size)
        factor = slow_motion(max(takes_s), demo.watched_s)
        takes_s = [factor * seconds for seconds in takes_s]
    # The largest one that cuts the prompt tokens into enough portions, otherwise the smallest.
    prompt_tokens = size.prompt_tokens(sharing=sharing)
    budget = next((budget for budget in BUDGETS if _PORTIONS * budget <= prompt_tokens), BUDGETS[-1])
    scenes = tuple(_budgeted(_sized(scene, size, usual), budget) for scene in demo.scenes)
    sized = replace(demo, knobs={**demo.knobs, "slow_motion": factor}, scenes=scenes)
    longest = iter(takes_s)
    seconds = tuple(_lasts_s(scene, next(longest) if scene.burst or scene.chats else 0.0) for scene in demo.scenes)
    span_ms = SPANS_MS[1 if max(takes_s) * 1000 > SPANS_MS[0] else 0]
    return Plan(demo=sized, seconds=seconds, slow_motion=factor, budget=budget, span_ms=span_ms)


def _settable(demo: Demo, info: EngineInfo, before: Knobs) -> Demo:
    """Returns a demo whose scenes change what can be changed; raises ``ValueError`` if one cannot change anything."""
    info.check_knobs(before.changed(demo.knobs), before)
    scenes = []
    for scene in demo.scenes:
        changes = info.settable(scene.knobs)
        info.check_knobs(before.changed(changes or scene.knobs), before)
        scenes.append(replace(scene, knobs=changes))
    return replace(demo, scenes=tuple(scenes))


def _with_clients(demo: Demo, size: ClientSize) -> Plan:
    before, wave_s, seconds = 0, 0.0, []
    for scene in demo.scenes:
        if scene.clients:
            wave_s, before = size.takes_s(scene.clients, before), scene.clients.count
        lasts_s = _lasts_s(scene, 0.0)
        seconds.append(min(ACT_S, max(lasts_s, wave_s)) if scene.clients or scene.settles else lasts_s)
    scenes = tuple(replace(scene, read_s=lasts_s) for scene, lasts_s in zip(demo.scenes, seconds, strict=True))
    sized = replace(demo, knobs={**demo.knobs, "slow_motion": 1.0}, scenes=scenes)
    return Plan(demo=sized, seconds=tuple(seconds), slow_motion=1.0, budget=0, span_ms=SPANS_MS[-1], client=size)


def _size_of(scene: Scene) -> Size:
    """Returns what a scene sends at once: a burst, chats or both, which is then as large a burst."""
    burst, chats = scene.burst, scene.chats
    prompts = len(chats.prompts) if chats else 0
    if burst:
        return Size(requests=burst.size + prompts, answer=burst.answer, mix=burst.prompts)
    assert chats is not None  # a demo has bursts, chats or clients
    return Size(requests=prompts, answer=chats.answer, mix=PromptMix())


def _acts(demo: Demo, knobs: Mapping[str, Any]) -> Iterator[tuple[Scene, Conditions]]:
    """Yields each scene with a burst or chats, with the conditions under which they are answered."""
    now = {**knobs, **demo.knobs}
    for scene in demo.scenes:
        now.update(scene.knobs)
        if scene.burst or scene.chats:
            others = len(STORIES) if scene.stories else 0
            limits = [now[name] for name in ("prefill_max_tokens", "step_max_tokens") if now[name]]
            alike = scene.burst is None or scene.burst.kind != "unique"
            yield (
                scene,
                Conditions(
                    places=max(1, now["max_batch_size"] - others),
                    others=others,
                    budget=min(limits, default=None),
                    sharing=alike and bool(now["same_step_sharing"]),
                    interval=now["prefill_interval"],
                ),
            )


def _sized(scene: Scene, size: Size, usual: Size) -> Scene:
    """Returns a scene whose burst has this size; the chats' answers shrink as those of the size do."""
    burst, chats = scene.burst, scene.chats
    if burst:
        burst = replace(burst, size=size.requests, answer=size.answer, mix=size.mix)
    if chats:
        chats = replace(chats, answer=max(LEAST_ANSWER, round(chats.answer * size.answer / usual.answer)))
    return replace(scene, burst=burst, chats=chats)


def _budgeted(scene: Scene, budget: int) -> Scene:
    """Returns a scene that sets a prefill budget of at most this, if it sets one."""
    limit = scene.knobs.get("prefill_max_tokens")
    return replace(scene, knobs={**scene.knobs, "prefill_max_tokens": min(budget, limit)}) if limit else scene


def _check_prompts_take_time(demo: Demo, size: Size, under: Conditions, speed: Speed) -> None:
    tokens = size.prompt_tokens(sharing=under.sharing)
    tokens = min(tokens, under.budget or tokens)
    if tokens * speed.token_s < _LEAST_PREFILL * speed.step_s:
        raise ValueError(
            f"{demo.title} shows how long prompts take, and a step with {tokens:,} of their tokens takes only"
            f" {tokens * speed.token_s / speed.step_s:.0%} longer here than without: choose a larger model, such as qwen3-8b"
        )


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
            f"this demo fills in {FILLED_S:g} s: start with --num-blocks {blocks} to see it"
        )
    # The first size whose next smaller one would no longer be enough.
    return fitted(largest, lambda one: needed(one.scaled(SHRINK)), _OVERFULL * pool)


def _lasts_s(scene: Scene, traffic_s: float) -> float:
    read_s = scene.read_s
    if read_s is None:
        read_s = reading_s(longest(scene.caption)) + (_CHOOSING_S if scene.answers else 0.0)
    return max(read_s, _STORY_BEGINS_S + traffic_s) if scene.burst or scene.chats else read_s
