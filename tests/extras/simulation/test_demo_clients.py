"""The demo of the KV cliff: where it is offered, what its clients send, and that its figures are those of the run."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from roseplay import Engine
from roseplay.clock import VirtualClock
from roseplay.config import EngineConfig, Knobs
from roseplay.core.info import EngineInfo
from roseplay.formats.numbers import whole
from roseplay.play.demos.catalog import CLIFF, DEMOS
from roseplay.play.demos.clients import FEW, MANY, client_size
from roseplay.play.demos.plan import ACT_S, plan
from roseplay.play.playground import Playground
from tests.play.conftest import poll
from tests.play.fake_engine import INFO
from tests.waiting import wait_until

TAB = "tab-of-clients"
KNOBS = Knobs().to_dict()


def information(model: str, **settings: Any) -> tuple[EngineInfo, EngineConfig]:
    with Engine(model, **settings, clock=VirtualClock()) as engine:
        return engine.info, engine.config


def test_a_published_load_is_sent_where_there_is_one() -> None:
    size = client_size(*information("qwen3-32b", run_as="h100", tensor_parallel_size=2))
    assert (size.prompt, size.answer) == (4096, 128)
    assert FEW < size.fit < MANY
    assert (size.published[FEW].ttft_s, size.published[MANY].ttft_s) == (1.062, 18.957)


@pytest.mark.parametrize(
    "settings",
    [
        {"run_as": "h100"},
        {"run_as": "rtx-4090", "max_model_len": 4096},
        {"run_as": "h100", "num_blocks": 3000, "max_model_len": 8192},
    ],
)
def test_elsewhere_few_clients_fit_into_the_blocks_and_many_do_not(settings: dict[str, Any]) -> None:
    info, config = information("qwen3-8b", **settings)
    size, pool = client_size(info, config), (info.num_blocks - 1) * info.block_size
    assert FEW * (size.prompt + size.answer) < pool < MANY * (size.prompt + size.answer)
    planned = plan(CLIFF, None, info, KNOBS, config)
    assert 20 <= planned.whole_s <= 60
    assert max(planned.seconds) <= ACT_S


def test_where_it_shows_nothing_it_is_absent_with_the_reason() -> None:
    with pytest.raises(ValueError, match="on simulated GPUs only: its 128 clients fill"):
        plan(CLIFF, None, INFO, KNOBS)
    slow = information("llama-3.1-70b", run_as="h200", tensor_parallel_size=2, max_model_len=8192)
    with pytest.raises(ValueError, match=r"takes about \d+ s here: start with --num-blocks \d+"):
        plan(CLIFF, None, slow[0], KNOBS, slow[1])
    quick = information("smollm2", run_as="h100", num_blocks=449)
    with pytest.raises(ValueError, match="an answer takes 34 ms here, too short"):
        plan(CLIFF, None, quick[0], KNOBS, quick[1])
    short = information("qwen3-32b", run_as="h100", tensor_parallel_size=2, max_waiting=127)
    with pytest.raises(ValueError, match="do not all fit into a queue of 127: start with --max-waiting 128"):
        plan(CLIFF, None, short[0], KNOBS, short[1])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Playground]:
    """A simulated GPU whose KV blocks are filled within a fraction of a second, and the demo, whose scenes are left with
    ``next``."""
    scenes = tuple(replace(scene, read_s=60.0) for scene in CLIFF.scenes)
    monkeypatch.setitem(DEMOS, "cliff", replace(CLIFF, scenes=scenes))
    engine = Engine("qwen3-0.6b", run_as="h100", num_blocks=1500, max_model_len=2048)
    playground = Playground(engine)
    playground.start()
    yield playground
    playground.close()
    engine.close()


def test_its_figures_are_those_of_the_run_and_it_leaves_nothing_behind(small: Playground) -> None:
    size = client_size(small.engine.info, small.engine.config)
    small.start_demo("cliff", TAB)
    told: dict[int, dict[str, str]] = {}
    measured: dict[int, list[list[Any]]] = {}
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    firsts: Counter[int] = Counter()
    scene, left, since = -1, -1, 0

    def shown() -> bool:
        """Whether the scene's caption, and what the next one tells, have been in a frame."""
        if scene == 0:
            return True
        if scene == 1:
            return firsts[1] > 2 * FEW  # all have their second prompts' tokens
        if scene == 2:
            return bool(seen[2])
        return any(running + waiting >= 100 and waiting > 10 for running, waiting in seen[scene])

    while small.demos.status() is not None:
        time.sleep(0.05)  # the engine's thread needs the processor
        reply = poll(small, since, boot=small.boot_id, tab_id=TAB)
        since = reply["next"]
        for frame in reply["frames"]:
            if (frame["demo"] or {}).get("caption"):
                scene = frame["demo"]["scene"]
                told[scene] = frame["demo"]["figures"]
                measured[scene] = frame["demo"].get("clients", [])
            firsts[scene] += sum(event[1] == "first" for event in frame["requests"])
            if frame["stats"]:
                seen[scene].append((frame["stats"]["running"], frame["stats"]["waiting"]))
        if scene > left and shown():
            left = scene
            small.demos.next(TAB)
    assert told[0] == {"client_fit": whole(size.fit)}
    assert told[1] == {"client_prompt": whole(size.prompt)}
    assert told[2].keys() == {"few_first_token", "few_kv"}
    assert told[3] == {"client_fit": whole(size.fit)}
    assert "many_waiting" in told[4]
    assert told[5].keys() - {"clients_beyond", "clients_within"} == {"many_first_token"}
    few, many = measured[5]
    assert (few[0], many[0]) == (FEW, MANY) and few[2] < many[1] < many[2]
    assert [few[3], many[3]] == [told[2]["few_first_token"], told[5]["many_first_token"]]
    requests, stories = {scene: [sum(both) for both in counts] for scene, counts in seen.items()}, 4
    assert median(requests[2]) <= FEW + stories  # the last frames of a scene may have clients of the next one
    assert 100 <= max(requests[5]) <= MANY + stories
    assert max(running for running, _ in seen[5]) < MANY, "not all fit"
    assert max(waiting for _, waiting in seen[5]) > 10
    wait_until(lambda: not small.tabs.open(TAB).unfinished())
    assert small.knobs() == KNOBS
