"""The API samples as the model's author recommends, unless the request or ``generation_config`` says otherwise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.engine.client import Engine
from roseplay.model.source import embedded_model
from roseplay.serve.bodies import ChatBody, CompletionBody
from roseplay.serve.submitting import prepare_chat, prepare_completion

SETTINGS: dict[str, Any] = {"worker": "thread", "threads": 1, "num_blocks": 100}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """tiny-chat with an author who recommends short greedy answers."""
    directory = tmp_path_factory.mktemp("model") / "recommended"
    shutil.copytree(embedded_model(), directory)
    file = Path(directory) / "generation_config.json"
    recommended = {"do_sample": False, "repetition_penalty": 1.5, "max_new_tokens": 6}
    file.write_text(json.dumps({**json.loads(file.read_text()), **recommended}))
    return str(directory)


@pytest.fixture(scope="module")
def engine(checkpoint: str) -> Iterator[Engine]:
    with Engine(checkpoint, **SETTINGS) as engine:
        yield engine


def drawn(engine: Engine, **body: Any) -> SamplingParams:
    """The sampling parameters of a chat, or of a completion if the body has a prompt."""
    if "prompt" in body:
        return prepare_completion(engine, CompletionBody(model="m", **body))[0].params
    return prepare_chat(engine, ChatBody(model="m", **CHAT, **body))[0].params


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "What is TTFT?"}]}


def test_what_a_request_does_not_say_is_the_authors(engine: Engine) -> None:
    params = drawn(engine)
    assert (params.temperature, params.repetition_penalty, params.max_new_tokens) == (0, 1.5, 6)
    assert (params.top_p, params.top_k) == (1, None)


def test_an_authors_limit_beyond_the_context_is_lowered_to_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine.info.sampling_defaults, "max_new_tokens", 10**6)  # type: ignore[arg-type]
    (request,) = prepare_chat(engine, ChatBody(model="m", **CHAT))
    most = min(engine.info.max_model_len, (engine.info.num_blocks - 1) * engine.info.block_size)
    assert request.params.max_new_tokens == most - len(request.token_ids)


def test_what_it_says_counts(engine: Engine) -> None:
    said = {"temperature": 1.0, "repetition_penalty": 1.0, "max_tokens": 9}  # OpenAI's defaults, given explicitly
    params = drawn(engine, **said)
    assert (params.temperature, params.repetition_penalty, params.max_new_tokens) == (1, 1, 9)
    params = drawn(engine, prompt="A step", temperature=None)
    assert (params.temperature, params.max_new_tokens) == (0, 16)  # null counts as not given


def test_user_and_priority_are_for_the_scheduling_policy(engine: Engine) -> None:
    params = drawn(engine, prompt="A step", user="a team", priority=-2)
    assert (params.tenant, params.priority) == ("a team", -2)


def test_a_user_may_be_empty(engine: Engine) -> None:
    params = drawn(engine, user="")
    assert (params.tenant, params.priority) == (None, 0)


def test_none_are_openais(checkpoint: str) -> None:
    with Engine(checkpoint, generation_config="none", **SETTINGS) as engine:
        params = drawn(engine, max_tokens=3)
    assert (params.temperature, params.repetition_penalty) == (1, 1)
