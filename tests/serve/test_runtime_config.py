"""Knobs of a running engine over HTTP, under roseplay's and vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from roseplay.config import Knobs
from roseplay.engine.client import Engine


@pytest.fixture
def api(address: str, engine: Engine) -> Iterator[httpx.Client]:
    before = engine.knobs
    with httpx.Client(base_url=f"{address}/v1", timeout=30) as client:
        yield client
    engine.set_knobs(**before.to_dict())


def test_it_reads_all_knobs_under_both_names(api: httpx.Client, engine: Engine) -> None:
    found = api.get("/runtime_config").json()
    assert found["knobs"] == engine.knobs.to_dict()
    assert set(found["knobs"]) == set(Knobs().to_dict())
    assert found["vllm"]["max_num_seqs"] == engine.knobs.max_batch_size
    assert found["vllm"]["enforce_eager"] is not engine.knobs.cuda_graphs


def test_either_name_changes_them(api: httpx.Client, engine: Engine) -> None:
    changed = api.patch("/runtime_config", json={"max_num_seqs": 3, "prefill_max_tokens": 64}).json()
    assert (changed["knobs"]["max_batch_size"], changed["vllm"]["max_num_seqs"]) == (3, 3)
    assert (engine.knobs.max_batch_size, engine.knobs.prefill_max_tokens) == (3, 64)
    assert api.patch("/runtime_config", json={"max_batch_size": 5, "max_num_seqs": 5}).status_code == 200
    assert api.get("/runtime_config").json()["knobs"]["max_batch_size"] == 5
    assert api.patch("/runtime_config", json={"enforce_eager": False}).status_code == 200


@pytest.mark.parametrize(
    ("changes", "says", "param"),
    [
        ({"max_seqs": 3}, "there is no knob 'max_seqs': use prefill_max_tokens", "max_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0: use an integer", "max_num_seqs"),
        ({"max_batch_size": "3"}, "max_batch_size is '3'", "max_batch_size"),
        ({"\ud800": 1}, "half of a surrogate pair", None),
        ({"max_batch_size": "\ud800"}, "half of a surrogate pair", None),
        ({"slow_motion": float("nan")}, "a number that JSON does not have", None),
        ({"max_num_seqs": 2, "max_batch_size": 3}, "two names of one knob", "max_batch_size"),
        ({"enforce_eager": "yes"}, "enforce_eager is 'yes': use true or false", "enforce_eager"),
        ({"enforce_eager": True}, "enforce_eager needs a CUDA device", "enforce_eager"),
        ([1], "the body", None),
    ],
)
def test_a_bad_change_changes_nothing(
    api: httpx.Client, engine: Engine, changes: object, says: str, param: str | None
) -> None:
    before = engine.knobs
    content = json.dumps(changes).encode()
    answer = api.patch("/runtime_config", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert says in error["message"] and error["param"] == param
    assert engine.knobs == before
