"""What an engine leaves behind when it ends, and what keeps it alive."""

from __future__ import annotations

import gc
import weakref

import pytest

from roseplay import Engine, SamplingParams
from roseplay.engine.processes import freeze_objects
from roseplay.model.kv_cache import KVCache
from roseplay.model.runner import ModelRunner
from tests.engine.test_engine import LONG
from tests.model.families import FAMILIES, tiny_model
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tiny_llama):
    directory = tmp_path_factory.mktemp("model")
    tiny_llama.save_pretrained(directory)
    return str(directory)


def live(kind):
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_a_closed_engine_leaves_no_model_and_no_pool(saved):
    gc.collect()
    before = live(ModelRunner), live(KVCache)
    for _ in range(3):
        with Engine(saved, block_size=4, num_blocks=50) as engine:
            engine.submit([3, 4], LONG).result(20)
    del engine  # nothing waits for the garbage collector either
    assert (live(ModelRunner), live(KVCache)) == before


def test_the_users_model_is_collected_after_the_engine():
    model = tiny_model(FAMILIES["llama"]())
    with Engine(model, block_size=4, num_blocks=50) as engine:
        engine.submit([3, 4], LONG).result(20)
    weights = weakref.ref(next(model.parameters()))
    del model, engine
    gc.collect()
    assert weights() is None


def test_prompts_of_ended_requests_do_not_stay_in_memory(tiny_llama):
    with Engine(tiny_llama, block_size=4, num_blocks=100) as engine:
        streams = [
            weakref.ref(engine.submit([3, 4, 5], SamplingParams(max_new_tokens=1)).result(20)) for _ in range(300)
        ]
        reader = engine.telemetry.since

        def kept() -> int:
            reader(0)
            return sum(stream() is not None for stream in streams)

        wait_until(lambda: kept() < 280)  # those of the last second are kept until then
        assert streams[-1]() is not None  # a reader that polls still finds the newest


def test_garbage_is_collected_once_a_worker_process_has_loaded_its_model():
    gc.disable()
    try:
        freeze_objects()
        assert gc.isenabled()
    finally:
        gc.enable()
