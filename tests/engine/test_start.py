"""What an engine reports while it starts, with a worker in a thread and in a process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import roseplay.engine.client as client_module
from roseplay import Engine
from roseplay.core.progress import STAGES, Progress
from roseplay.engine.errors import EngineStartError
from roseplay.engine.start import OpeningTokenizer
from tests.model.families import FAMILIES, tiny_model

SMALL: dict[str, Any] = {"num_blocks": 8, "record_steps": False, "fuse_ops": False, "pack_weights": False}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    tiny_model(FAMILIES["llama"]()).save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_start_is_told_stage_by_stage(directory: str, worker: str) -> None:
    told: list[Progress] = []
    threads = set()

    def tell(progress: Progress) -> None:
        told.append(progress)
        threads.add(threading.get_ident())

    with Engine(directory, worker=worker, on_progress=tell, **SMALL):
        count = len(told)
        assert list(dict.fromkeys(progress.stage for progress in told)) == list(STAGES)
        size = (Path(directory) / "model.safetensors").stat().st_size
        assert Progress("weights", 0, size, "bytes") in told
    assert threads == {threading.get_ident()}
    assert len(told) == count


def test_a_worker_gets_on_while_imports_here_have_to_wait(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server builds the page meanwhile."""
    order: list[str] = []
    go_on = threading.Event()

    def tell(progress: Progress) -> None:
        order.append(progress.stage)
        if progress.stage == "warm-up":
            order.append("go on")
            go_on.set()

    monkeypatch.setattr(client_module, "open_tokenizer", lambda model, config: order.append("tokenizer"))
    with Engine(directory, worker="process", on_progress=tell, import_after=go_on, **SMALL):
        assert order.index("weights") < order.index("go on") < order.index("tokenizer")


def test_an_error_of_the_callback_ends_the_worker(directory: str) -> None:
    class OverError(Exception):
        pass

    def refuse(progress: Progress) -> None:
        if progress.stage == "weights":
            raise OverError

    before = threading.active_count()
    with pytest.raises(OverError):
        Engine(directory, worker="process", on_progress=refuse, **SMALL)
    assert threading.active_count() <= before + 1  # the tokenizer's thread may not have ended yet


def test_a_tokenizer_that_cannot_be_opened_ends_the_wait_for_the_worker(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_tokenizer(model: Any, config: Any) -> None:
        raise EngineStartError("no such tokenizer")

    told: list[Progress] = []
    monkeypatch.setattr(client_module, "open_tokenizer", open_tokenizer)
    with pytest.raises(EngineStartError, match="no such tokenizer"):
        Engine(directory, worker="process", on_progress=told.append, **SMALL)
    assert "warm-up" not in [progress.stage for progress in told]


def test_the_wait_for_a_tokenizer_can_be_cancelled() -> None:
    go_on, cancelled = threading.Event(), threading.Event()
    opening = OpeningTokenizer(go_on.wait)
    cancelled.set()
    with pytest.raises(EngineStartError, match="cancelled"):
        opening.result(cancelled)
    go_on.set()
    assert opening.result() is True
