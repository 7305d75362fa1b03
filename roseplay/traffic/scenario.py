"""A scenario: traffic that demonstrates one serving idea, and its settings before and after."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.formats.invalid import Input, Number, Whole, between, validated
from roseplay.traffic.arrivals import burst, fixed_interval, poisson
from roseplay.traffic.prompts import KINDS, Prompt, PromptMix, PromptSource
from roseplay.traffic.run_figures import FIGURES
from roseplay.traffic.workload import Workload, make_workload

SIDES = ("before", "after")
MAX_REQUESTS = 1000  # as many as a file of traffic may have
MAX_RATE_PER_S = 1000
MAX_NEW_TOKENS = 512
MAX_PROMPT = 2000  # characters
MOST_OFF = 0.25  # by how much the mean length of prompts may differ from ``Scenario.prompt_tokens``, as a share of it

PARAM_LIMITS: Mapping[str, tuple[float, float]] = {
    "num_requests": (1, MAX_REQUESTS),
    "max_new_tokens": (1, MAX_NEW_TOKENS),
    "rate_per_s": (0.1, MAX_RATE_PER_S),
    "concurrency": (1, MAX_REQUESTS),
}
_OPTIONAL = ("concurrency", "prompt")  # parameters that a scenario need not have


class Params(Input):
    """Parameters of a scenario's traffic that may be changed."""

    num_requests: Annotated[Whole, between(*PARAM_LIMITS["num_requests"])] | None = None
    max_new_tokens: Annotated[Whole, between(*PARAM_LIMITS["max_new_tokens"])] | None = None
    rate_per_s: Annotated[Number, between(*PARAM_LIMITS["rate_per_s"])] | None = None
    concurrency: Annotated[Whole, between(*PARAM_LIMITS["concurrency"])] | None = None
    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)] | None = None


class Settings(TypedDict):
    """Knobs, and fields of ``EngineConfig``, by name."""

    knobs: dict[str, Any]
    config: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Traffic that demonstrates what one switch does."""

    name: str  # as given on the command line
    title: str  # as it is displayed
    card: str  # one line of description
    look: tuple[str, str]  # two sentences: what to look for, and what it costs
    watch: str  # the figure that should improve, see ``run_figures.FIGURES``
    price: str | None = None  # the figure that gets worse in return, if any
    mix: PromptMix = KINDS["unique"]  # how its prompts relate
    prompt: str | None = None  # text of each prompt, instead of the texts of the source
    prompt_tokens: int | None = None  # mean length of its prompts, to which the mix is scaled if it is given
    num_requests: int = 32  # in a run
    tenants: tuple[str, ...] = ()  # whose the requests are, in turn; empty for nobody's
    structured_outputs: str | None = None  # what some answers follow, as of ``SamplingParams``; ``None`` for free text
    structured_every: int = 1  # every how many requests have it, beginning with the first
    # All at once, at a fixed interval, or independent of each other; the latter two at ``rate_per_s``.
    arrivals: Literal["burst", "interval", "poisson"] = "burst"
    rate_per_s: float | None = None
    concurrency: int | None = None  # clients that each send when their last is answered, in place of arrivals in time
    max_new_tokens: int = 8  # exact length of each answer; end-of-sequence tokens are ignored
    knobs: Mapping[str, Any] = field(default_factory=dict)  # that both arms set
    compared: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # of each arm, in the order of ``SIDES``
    config: Mapping[str, Any] = field(default_factory=dict)  # the same for fields of ``EngineConfig``
    compared_config: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for figure in (self.watch, self.price):
            if figure is not None and figure not in FIGURES:
                raise ValueError(f"scenario {self.name} names {figure!r}, which is not a figure")
        if None not in (self.concurrency, self.rate_per_s):
            raise ValueError("clients send when they are answered, and not at a rate: leave out one of them")
        if (self.rate_per_s is None) != (self.arrivals == "burst"):
            raise ValueError(f"scenario {self.name}: a burst has no rate, and other arrivals need one")
        self.arms()
        for side in SIDES:
            EngineConfig(**self.settings(side)["config"])

    def arms(self) -> dict[str, Knobs]:
        """Returns ``{"before": …, "after": …}``; raises ``ValueError`` for a bad knob."""
        return {side: Knobs().changed(self.settings(side)["knobs"]) for side in SIDES}

    def settings(self, side: str) -> Settings:
        """Returns what an arm sets."""
        overrides = self.own(side)
        return {"knobs": {**self.knobs, **overrides["knobs"]}, "config": {**self.config, **overrides["config"]}}

    def own(self, side: str) -> Settings:
        """Returns what only this arm sets."""
        index, both = SIDES.index(side), (self.compared, self.compared_config)
        knobs, config = ({name: values[index] for name, values in compared.items()} for compared in both)
        return {"knobs": knobs, "config": config}

    def params(self) -> dict[str, Any]:
        """Returns the parameters of its traffic that may be changed; those of ``_OPTIONAL`` only if they are set."""
        params: dict[str, Any] = {"num_requests": self.num_requests, "max_new_tokens": self.max_new_tokens}
        if self.rate_per_s is not None:
            params["rate_per_s"] = self.rate_per_s
        return params | {name: value for name in _OPTIONAL if (value := getattr(self, name)) is not None}

    def changed(self, params: Mapping[str, Any]) -> Scenario:
        """Returns the scenario with these parameters changed; raises ``ValueError`` for an unknown or a bad one."""
        names = {*self.params(), *_OPTIONAL}
        if unknown := sorted(set(params) - names):
            raise ValueError(f"{self.title} has no parameter {', '.join(unknown)}: it has {', '.join(sorted(names))}")
        changes = validated(Params, dict(params)).model_dump(exclude_unset=True)
        if changes.get("concurrency") is not None:
            changes = {"arrivals": "burst", "rate_per_s": None, **changes}
        return dataclasses.replace(self, **changes)

    def workload(
        self, source: PromptSource, *, seed: int = 0, room: int | None = None, count: Callable[[Prompt], int] = len
    ) -> Workload:
        """Returns its traffic; the same source and seed give the same list.

        Args:
            room: the most tokens of a prompt; if any is longer, all are scaled down by the same factor, or refused if
                ``prompt_tokens`` is set.
            count: returns the number of tokens in a prompt.

        Raises:
            ValueError: not even the smallest prompt fits, or prompts of ``prompt_tokens`` cannot be made or do not fit.
        """
        if self.prompt is not None:
            source = source.with_body(self.prompt)
        workload = make_workload(
            source,
            self._times(seed),
            mix=self._mix(source, room, count),
            params=SamplingParams(max_new_tokens=self.max_new_tokens, ignore_eos=True),
            seed=seed,
        )
        for index in range(0, len(workload), self.structured_every) if self.structured_outputs is not None else ():
            params = dataclasses.replace(workload[index].params, structured_outputs=self.structured_outputs)
            workload[index] = dataclasses.replace(workload[index], params=params)
        if not self.tenants:
            return workload
        return [arrival.of_tenant(self.tenants[i % len(self.tenants)]) for i, arrival in enumerate(workload)]

    def _times(self, seed: int) -> Sequence[float]:
        if self.rate_per_s is None:
            return burst(self.num_requests)
        if self.arrivals == "poisson":
            return poisson(self.num_requests, self.rate_per_s, seed=seed)
        return fixed_interval(self.num_requests, 1 / self.rate_per_s)

    def _mix(self, source: PromptSource, room: int | None, count: Callable[[Prompt], int]) -> PromptMix:
        if self.prompt_tokens is not None:
            return self._of_mean_length(self.prompt_tokens, source, room, count)
        return self.mix if room is None else self._fitted(source, room, count)

    def _of_mean_length(
        self, tokens: int, source: PromptSource, room: int | None, count: Callable[[Prompt], int]
    ) -> PromptMix:
        def lengths(mix: PromptMix) -> list[int]:
            return [count(prompt) for prompt in mix.prompts(source, self.num_requests)]

        if room is not None and tokens > room:
            raise ValueError(f"{self.title}: prompts of {tokens} tokens do not fit, there is room for {room}")
        mix = self.mix.of_mean_length(tokens, lambda mix: statistics.fmean(lengths(mix)))
        counts = lengths(mix)
        if abs((mean := statistics.fmean(counts)) - tokens) > MOST_OFF * tokens:
            raise ValueError(
                f"{self.title}: its texts do not make prompts of {tokens} tokens, the nearest have {mean:.0f}"
            )
        if room is not None and max(counts) > room:
            raise ValueError(
                f"{self.title}: with a mean of {tokens} tokens, a prompt takes {max(counts)}, there is room for {room}"
            )
        return mix

    def _fitted(self, source: PromptSource, room: int, count: Callable[[Prompt], int]) -> PromptMix:
        mix = self.mix
        while (longest := max(count(prompt) for prompt in mix.prompts(source, self.num_requests))) > room:
            smaller = mix.scaled(room / longest)
            if smaller == mix:
                raise ValueError(f"{self.title}: a prompt takes {longest} tokens, there is room for {room}")
            mix = smaller
        return mix
