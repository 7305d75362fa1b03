"""The traffic of an experiment: the same prompts and arrival times in every run of both arms."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Protocol

from roseplay.config import SamplingParams
from roseplay.lab.own_traffic import OwnTraffic
from roseplay.traffic.lengths import prompt_length
from roseplay.traffic.own import own_workload
from roseplay.traffic.prompts import QUESTIONS, Prompt, prompt_source
from roseplay.traffic.scenario import Scenario
from roseplay.traffic.workload import Arrival, Workload

WARM_UP_REQUESTS = 8
WARM_UP_TOKENS = 4


class Load(Protocol):
    """The part of an experiment that says what is sent."""

    @property
    def scenario(self) -> Scenario: ...
    @property
    def traffic(self) -> OwnTraffic | None: ...
    @property
    def seed(self) -> int: ...


def make_load(experiment: Load, engine: Any, room: int) -> tuple[Scenario, Workload, list[int]]:
    """Returns the scenario as it will be played, its workload, and the prompts' lengths in tokens.

    A scenario's prompts are scaled down to what the model accepts, and an answer gets at most half of that. Traffic of
    one's own is sent as it is.

    Raises:
        ValueError: not even short prompts fit; or a request of one's own does not.
    """
    questions = list(QUESTIONS)
    random.Random(f"questions {experiment.seed}").shuffle(questions)
    chat = not engine.info.tokenizes or getattr(engine.tokenizer, "chat_template", None) is not None
    source = prompt_source(engine, questions, chat=chat, seed=experiment.seed)

    def count(prompt: Prompt) -> int:
        return prompt_length(prompt, engine)

    if experiment.traffic is not None:
        requests = experiment.traffic.requests
        workload, lengths = own_workload(
            requests, source.with_body, engine.info.vocab_size, seed=experiment.seed, room=room, count=count
        )
        return experiment.scenario, workload, lengths
    answer = max(1, min(experiment.scenario.max_new_tokens, room // 2))
    scenario = dataclasses.replace(experiment.scenario, max_new_tokens=answer)
    workload = scenario.workload(source, seed=experiment.seed, room=room - answer, count=count)
    return scenario, workload, [count(arrival.prompt) for arrival in workload]


def warm_up(workload: Workload, prompt_tokens: list[int]) -> Workload:
    """Returns a few requests of the workload, the longest among them, so that first-time costs are not measured."""
    longest = max(range(len(workload)), key=prompt_tokens.__getitem__)
    chosen = [longest, *(index for index in range(len(workload)) if index != longest)][:WARM_UP_REQUESTS]
    params = SamplingParams(max_new_tokens=WARM_UP_TOKENS, ignore_eos=True)
    return [Arrival(0.0, workload[index].prompt, params) for index in chosen]
