"""The traffic of an experiment: the same prompts and arrival times in every run."""

from __future__ import annotations

import dataclasses
import random
import statistics
from dataclasses import dataclass
from typing import NamedTuple

from roseplay.config import SamplingParams
from roseplay.engine.engine_like import HasTokenizer
from roseplay.traffic.lengths import prompt_length
from roseplay.traffic.own import own_workload
from roseplay.traffic.own_traffic import OwnTraffic
from roseplay.traffic.prompts import QUESTIONS, Prompt, prompt_source
from roseplay.traffic.scenario import Scenario
from roseplay.traffic.workload import Arrival, Workload

WARM_UP_REQUESTS = 8
WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    scenario: Scenario  # with the requested parameters
    traffic: OwnTraffic | None = None  # replaces the scenario's requests
    seed: int = 0  # determines prompts and arrival times

    @property
    def answer_tokens(self) -> int:
        if self.traffic is not None:
            return sum(request.answer_tokens for request in self.traffic.requests)
        return self.scenario.num_requests * self.scenario.max_new_tokens

    def most_prompt_tokens(self, room: int) -> int:
        """Returns a high estimate of the tokens of all prompts without making them: a byte of text counts as a token.

        Args:
            room: the most tokens of a prompt.
        """
        if self.traffic is not None:
            sizes = (request.prompt for request in self.traffic.requests)
            return sum(min(room, size if isinstance(size, int) else len(size.encode())) for size in sizes)
        scenario, mix = self.scenario, self.scenario.mix
        bodies = QUESTIONS if scenario.prompt is None else (scenario.prompt,)
        body = max(len(text.encode()) for text in bodies) + 1
        mean: float | None = scenario.prompt_tokens
        if mean is None:
            mean = mix.head_tokens + body * statistics.fmean(mix.repeats)
        return round(scenario.num_requests * min(room, mean))

    def at_rate(self, rate_per_s: float, seconds: float | None) -> Load:
        """Returns the same traffic at this rate, lasting ``seconds`` if given.

        Raises:
            ValueError: there would be too many requests, or the traffic has no rate.
        """
        if self.traffic is not None:
            return Load(scenario=self.scenario, traffic=self.traffic.at_rate(rate_per_s), seed=self.seed)
        arrivals = "poisson" if self.scenario.rate_per_s is None else self.scenario.arrivals
        count = self.scenario.num_requests if seconds is None else max(1, round(rate_per_s * seconds))
        scenario = dataclasses.replace(self.scenario, arrivals=arrivals, rate_per_s=float(rate_per_s))
        try:
            scenario = scenario.changed({"num_requests": count, "rate_per_s": rate_per_s})
        except ValueError as error:
            raise ValueError(f"{error}: choose a lower rate or fewer seconds") from None
        return Load(scenario=scenario, seed=self.seed)

    def with_prompts_of(self, tokens: int) -> Load:
        """Returns the same scenario with prompts of this mean length; raises ``ValueError`` for other traffic."""
        if self.traffic is not None:
            raise ValueError("prompt_tokens is for a scenario: traffic of your own has prompts of its own lengths")
        return Load(scenario=dataclasses.replace(self.scenario, prompt_tokens=tokens), seed=self.seed)


class PlayedLoad(NamedTuple):
    """A load as it will be played: its workload, and the prompts' lengths in tokens."""

    workload: Workload
    prompt_tokens: list[int]


class PlayedLoads:
    """Makes loads as they will be played, see ``make_load``, and keeps the prompts of the last one only."""

    def __init__(self, engine: HasTokenizer, room: int) -> None:
        self._engine, self._room = engine, room
        self._last: tuple[Load, PlayedLoad] | None = None

    def make(self, load: Load) -> PlayedLoad:
        """Returns a load as it will be played; raises the ``ValueError`` of ``make_load``."""
        if self._last is None or self._last[0] is not load:
            last, self._last = self._last, None
            if last is not None and load.traffic is not None and load.traffic.has_prompts_of(last[0].traffic):
                times = zip(last[1].workload, load.traffic.requests, strict=True)
                workload = [dataclasses.replace(arrival, at_s=request.arrival_s) for arrival, request in times]
                played = last[1]._replace(workload=workload)
            else:
                del last
                played = make_load(load, self._engine, self._room)
            self._last = load, played
        return self._last[1]


def fitted(scenario: Scenario, room: int) -> Scenario:
    """Returns the scenario with answers of at most half of the tokens that a request may have."""
    return dataclasses.replace(scenario, max_new_tokens=max(1, min(scenario.max_new_tokens, room // 2)))


def make_load(load: Load, engine: HasTokenizer, room: int) -> PlayedLoad:
    """Returns a load as it will be played.

    A scenario's prompts are scaled down to what the model accepts, and an answer gets at most half of that. The user's
    own traffic is sent unchanged.

    Raises:
        ValueError: not even short prompts fit, or a request of the user's own traffic does not.
    """
    questions = list(QUESTIONS)
    random.Random(f"questions {load.seed}").shuffle(questions)
    chat = not engine.info.tokenizes or getattr(engine.tokenizer, "chat_template", None) is not None
    source = prompt_source(engine, questions, chat=chat, seed=load.seed)

    def count(prompt: Prompt) -> int:
        return prompt_length(prompt, engine)

    if load.traffic is not None:
        requests = load.traffic.requests
        workload, lengths = own_workload(
            requests, source.with_body, engine.info.vocab_size, seed=load.seed, room=room, count=count
        )
        return PlayedLoad(workload, lengths)
    scenario = fitted(load.scenario, room)
    workload = scenario.workload(source, seed=load.seed, room=room - scenario.max_new_tokens, count=count)
    return PlayedLoad(workload, [count(arrival.prompt) for arrival in workload])


def warm_up(load: PlayedLoad) -> Workload:
    """Returns a few requests of the load, including the longest, so that first-time costs are not measured."""
    workload, prompt_tokens = load
    longest = max(range(len(workload)), key=prompt_tokens.__getitem__)
    chosen = [longest, *(index for index in range(len(workload)) if index != longest)][:WARM_UP_REQUESTS]
    few = SamplingParams(max_new_tokens=WARM_UP_TOKENS, ignore_eos=True)
    like = [(arrival.prompt, arrival.params.structured_outputs) for arrival in map(workload.__getitem__, chosen)]
    return [Arrival(0.0, prompt, dataclasses.replace(few, structured_outputs=structure)) for prompt, structure in like]
