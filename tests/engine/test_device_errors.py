"""Errors that may mean a broken device: decided by testing the device, never by how many requests fail."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay import Engine
from roseplay.engine.errors import EngineError
from roseplay.model import device_errors
from roseplay.model.runner import ModelRunner
from tests.engine.test_engine import LONG
from tests.engine.test_overlap import open_engine

OF_DEVICE = [
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`",
    "Triton Error [CUDA]: an illegal memory access was encountered",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
]


def fail_always(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def launch(self: ModelRunner, step: Any) -> Any:
        raise error

    monkeypatch.setattr(ModelRunner, "_launch", launch)


def count_probes(monkeypatch: pytest.MonkeyPatch, broken: bool) -> list[Any]:
    probes, probe = [], device_errors.try_device

    def counted(device: Any) -> None:
        probes.append(device)
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        probe(device)

    monkeypatch.setattr(device_errors, "try_device", counted)
    return probes


@pytest.mark.parametrize("message", OF_DEVICE)
def test_a_device_that_is_gone_ends_every_stream_and_says_to_restart(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch, message: str
):
    with open_engine(tiny_llama) as engine:
        count_probes(monkeypatch, broken=True)
        fail_always(monkeypatch, RuntimeError(message))
        error = engine.submit([3, 4, 5], LONG).result(20).error
        assert error is not None
        assert f"the device is lost ({message})" in error
        with pytest.raises(EngineError, match="restart"):
            engine.submit([3], LONG)


@pytest.mark.parametrize("message", OF_DEVICE)
def test_a_launch_that_failed_ends_its_requests_alone(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch, message: str):
    with open_engine(tiny_llama) as engine:
        expected = engine.submit([3, 4, 5], LONG).result(20).token_ids
        probes = count_probes(monkeypatch, broken=False)
        with monkeypatch.context() as patch:
            fail_always(patch, RuntimeError(message))
            for number in range(20):
                assert engine.submit([6 + number], LONG).result(20).error == f"RuntimeError: {message}"
        assert len(probes) == 20
        assert engine.submit([3, 4, 5], LONG).result(20).token_ids == expected


def test_a_burst_of_bad_requests_asks_nothing_of_the_device(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch):
    with Engine(tiny_llama, block_size=4, num_blocks=100) as engine:
        probes = count_probes(monkeypatch, broken=True)
        with monkeypatch.context() as patch:
            fail_always(patch, ValueError("no such token"))
            for number in range(20):
                assert engine.submit([6 + number], LONG).result(20).error == "ValueError: no such token"
        assert probes == []
        assert engine.submit([3, 4, 5], LONG).result(20).finish_reason == "length"
