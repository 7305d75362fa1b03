"""Steps that overlap and steps replayed as graphs, as on a GPU: the same tokens, and requests end the same way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from roseplay.engine.load_runner import load_model_runner
from roseplay.engine.records import StepRecord
from roseplay.engine.telemetry import StepEvent
from roseplay.engine.transport import ThreadTransport
from tests.engine.cases import KNOBS, engines_of, prompts
from tests.engine.test_engine import LONG
from tests.kernels.emulation import emulate_gpu
from tests.model.families import STATEFUL, tiny_model
from tests.waiting import wait_until

PARAMS = [
    SamplingParams(max_new_tokens=12, ignore_eos=True),
    SamplingParams(max_new_tokens=9, temperature=1.0, seed=3, ignore_eos=True),
    SamplingParams(max_new_tokens=14, temperature=0.8, seed=4, top_k=20, top_p=0.9, repetition_penalty=1.3),
    SamplingParams(max_new_tokens=11, presence_penalty=1.0, frequency_penalty=0.5, logprobs=3),
    SamplingParams(max_new_tokens=20, temperature=1.5, seed=5, stop_token_ids=tuple(range(10, 40)), ignore_eos=True),
    SamplingParams(max_new_tokens=1),
    SamplingParams(max_new_tokens=20, temperature=1.5, seed=6, stop_token_ids=tuple(range(10, 40)), min_new_tokens=6),
    SamplingParams(max_new_tokens=9, allowed_token_ids=tuple(range(3, 30)), logit_bias={5: 2.0}, ignore_eos=True),
]
CASES: dict[str, dict[str, Any]] = {
    **KNOBS,
    "after preemption": {"num_blocks": 24},
    "swapped at preemption": {"num_blocks": 24, "preemption_mode": "swap", "prefix_cache": False},
}


def open_engine(model: Any, **settings: Any) -> Engine:
    """An engine that runs its steps as on a GPU."""
    with emulate_gpu():
        return Engine(model, **{"block_size": 4, "num_blocks": 100, "attention": "reference", **settings})


@pytest.fixture
def engine(tiny_llama: Any) -> Iterator[Engine]:
    with open_engine(tiny_llama) as engine:
        yield engine


def answers(engine: Engine) -> list[tuple[Any, ...]]:
    asked = list(zip(prompts(), itertools.cycle(PARAMS)))
    streams = [engine.submit(prompt, params) for prompt, params in [*asked, *asked[::-1]]]
    results = [stream.result(60) for stream in streams]
    assert not any(result.error for result in results), [result.error for result in results]
    return [(result.token_ids, result.finish_reason) for result in results]


def records(engine: Engine, since: int = 0) -> list[StepRecord]:
    return [event.record for event in engine.telemetry.since(since)[1] if isinstance(event, StepEvent)]


def has_no_blocks(engine: Engine) -> bool:
    """Whether all requests' blocks are back, as of the last step."""
    return records(engine)[-1].blocks_active + records(engine)[-1].blocks_shared == 0


def test_the_same_tokens_with_and_without(tiny_llama: Any):
    expected = {case: answers(engine) for case, engine in engines_of(CASES, tiny_llama, num_blocks=100)}
    off = itertools.cycle([{"overlap": False}, {"cuda_graphs": False}])
    for case, engine in engines_of(CASES, tiny_llama, open_engine):
        reader = engine.telemetry.reader()
        assert answers(engine) == expected[case], case
        replayed = [record.replayed for record in reader.steps() if record.prompt_tokens or record.decode_tokens]
        assert any(replayed) == (case != "one append a request"), case
        wait_until(lambda engine=engine: has_no_blocks(engine))
        reader.read()
        engine.clear_cache()
        switched = next(off)
        engine.set_knobs(**switched)
        assert answers(engine) == expected[case], (case, switched)
        assert "overlap" in switched or not any(record.replayed for record in reader.steps())


STATEFUL_CASES: dict[str, dict[str, Any]] = {
    "chunked": {"prefill_max_tokens": 7},
    "after preemption": {"num_blocks": 24},
    "few kept states": {"state_interval": 1, "state_snapshots": 3, "state_slots": 5},
}


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=[] if family == "lfm2" else [pytest.mark.slow]) for family in STATEFUL]
)
@pytest.mark.parametrize("case", STATEFUL_CASES)
def test_the_same_tokens_with_and_without_of_models_with_recurrent_layers(family: str, case: str):
    """States are kept and restored between steps that are launched but not yet waited for."""
    settings = {"dtype": "float32", "max_batch_size": 8, **STATEFUL_CASES[case]}
    with open_engine(tiny_model(STATEFUL[family]()), cuda_graphs=False, overlap=False, **settings) as engine:
        reader = engine.telemetry.reader()
        expected = answers(engine)
        assert not any(record.replayed for record in reader.steps())
        for overlap in (True, False):
            engine.set_knobs(overlap=overlap, cuda_graphs=True)
            engine.clear_cache()
            assert answers(engine) == expected
            decodes = [record for record in reader.steps() if record.decode_tokens and not record.prompt_tokens]
            assert decodes
            assert all(record.replayed for record in decodes), engine.info.no_cuda_graphs


class Noting:
    """A runner, or a step that it launched, that notes when steps are launched and waited for."""

    def __init__(self, of: Any, order: list[tuple[str, int]]) -> None:
        self._of, self._order = of, order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def launch(self, step: Any) -> Any:
        self._order.append(("launch", step.step_id))
        return Noting(self._of.launch(step), self._order)

    def result(self) -> Any:
        self._order.append(("wait", self._of.step.step_id))
        return self._of.result()


def test_steps_do_overlap(tiny_llama: Any):
    """A step is launched before the previous one has been waited for."""
    order: list[tuple[str, int]] = []

    def start(*about: Any) -> ThreadTransport:
        return ThreadTransport(*about, make_runner=lambda *model: Noting(load_model_runner(*model), order))

    with open_engine(tiny_llama, start_transport=start) as engine:
        engine.submit([3, 4, 5], SamplingParams(max_new_tokens=6, ignore_eos=True)).result(20)
        first = order[0][1]
        expected = [("launch", first)]
        for step in range(first, first + 5):
            expected += [("launch", step + 1), ("wait", step)]
        assert order[: len(expected)] == expected
        engine.set_knobs(overlap=False)
        engine.inspect_block(1)
        order.clear()
        engine.submit([6, 4, 5], SamplingParams(max_new_tokens=6, ignore_eos=True)).result(20)
        assert not order  # steps are executed


def test_switches_are_live(engine: Engine):
    expected = engine.submit([3, 4, 5], LONG).result(20).token_ids
    stream = engine.submit([3, 4, 5], LONG)
    for number in range(12):
        engine.set_knobs(overlap=bool(number & 1), cuda_graphs=bool(number & 2))
        seen = len(stream.token_ids)
        wait_until(lambda seen=seen: len(stream.token_ids) > seen or stream.finish_reason)
    assert stream.result(20).token_ids == expected
    assert {True, False} <= {record.replayed for record in records(engine)}


def test_aborts_that_arrive_while_steps_overlap(engine: Engine):
    expected = engine.submit([3, 4, 5], LONG).result(20).token_ids
    for tokens in (0, 1, 5):
        streams = [engine.submit([6 + i, 4, 5], LONG) for i in range(4)]
        kept = engine.submit([3, 4, 5], LONG)
        wait_until(lambda streams=streams, tokens=tokens: all(len(s.token_ids) >= tokens for s in streams))
        for stream in streams:
            stream.cancel()
        assert {stream.result(20).finish_reason for stream in streams} <= {"abort", "length"}
        assert kept.result(20).token_ids == expected
    wait_until(lambda: has_no_blocks(engine))
