"""What an engine reports while it starts, with a worker in a thread and in a process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from roseplay.core.progress import STAGES, Progress
from roseplay.engine.errors import EngineStartError
from roseplay.engine.start import OpeningTokenizer
from tests.hardware import needs_simulation
from tests.model.families import FAMILIES, tiny_model

SMALL: dict[str, Any] = {"num_blocks": 8, "record_steps": False, "fuse_ops": False, "pack_weights": False}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    tiny_model(FAMILIES["llama"]()).save_pretrained(directory)
    return str(directory)


def test_a_start_is_told_stage_by_stage_and_a_thread_and_a_process_then_run_the_same_loop(directory: str) -> None:
    asked = SamplingParams(max_new_tokens=20, prompt_logprobs=2, ignore_eos=True)
    answers = []
    for worker in ("thread", "process"):
        with told_stage_by_stage(directory, worker) as engine:
            answers.append([engine.submit([5 + i] * 9, asked).result(30) for i in range(3)])
    for one, other in zip(*answers, strict=True):
        assert one.token_ids == other.token_ids
        assert len(other.prompt_logprobs) == 9
        for ours, theirs in zip(one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True):
            assert ours is not None and theirs is not None
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


@contextlib.contextmanager
def told_stage_by_stage(directory: str, worker: str) -> Iterator[Engine]:
    """A worker in a process gets on while imports here have to wait: the server builds the page meanwhile."""
    told: list[Progress] = []
    threads = set()
    go_on = threading.Event()
    before_the_tokenizer: list[str] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        threads.add(threading.get_ident())
        if progress.stage == "warm-up":
            go_on.set()

    def open_tokenizer(model: Any, config: Any) -> None:
        before_the_tokenizer.extend(progress.stage for progress in told)

    waits = {"import_after": go_on} if worker == "process" else {}
    with Engine(directory, worker=worker, on_progress=tell, open_tokenizer=open_tokenizer, **waits, **SMALL) as engine:
        count = len(told)
        assert list(dict.fromkeys(progress.stage for progress in told)) == list(STAGES)
        size = (Path(directory) / "model.safetensors").stat().st_size
        assert Progress("weights", 0, size, "bytes") in told
        yield engine
    assert threads == {threading.get_ident()}
    assert len(told) == count
    assert ("warm-up" in before_the_tokenizer) == (worker == "process")


SIMULATED: dict[str, Any] = {"run_as": "h100", "worker": "process"}  # which imports no torch


@needs_simulation
def test_an_error_of_the_callback_ends_the_worker() -> None:
    class OverError(Exception):
        pass

    def refuse(progress: Progress) -> None:
        if progress.stage == "warm-up":
            raise OverError

    before = threading.active_count()
    with pytest.raises(OverError):
        Engine("qwen3-0.6b", on_progress=refuse, **SIMULATED)
    assert threading.active_count() <= before + 1  # the tokenizer's thread may not have ended yet


@needs_simulation
def test_a_tokenizer_that_cannot_be_opened_ends_the_wait_for_the_worker() -> None:
    def open_tokenizer(model: Any, config: Any) -> None:
        raise EngineStartError("no such tokenizer")

    told: list[Progress] = []
    with pytest.raises(EngineStartError, match="no such tokenizer"):
        Engine("qwen3-0.6b", on_progress=told.append, open_tokenizer=open_tokenizer, **SIMULATED)
    assert "warm-up" not in [progress.stage for progress in told]


def test_the_wait_for_a_tokenizer_can_be_cancelled() -> None:
    go_on, cancelled = threading.Event(), threading.Event()
    opening = OpeningTokenizer(go_on.wait)
    cancelled.set()
    with pytest.raises(EngineStartError, match="cancelled"):
        opening.result(cancelled)
    go_on.set()
    assert opening.result() is True
