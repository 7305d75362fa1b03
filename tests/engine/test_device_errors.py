"""Errors of a step on a device: too little memory, a lost device, or neither; a failed step never decides that alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from roseplay import SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import DeviceLostError, Step, StepEntry, StepResult, StepTooLargeError
from roseplay.model.accelerator import Accelerator
from roseplay.model.device_errors import judge
from roseplay.model.launch import DeviceTimer, LaunchedStep
from roseplay.model.sampler import Logprobs, draw
from roseplay.model.step_sampler import StepSampler

CPU = torch.device("cpu")
LOST = torch.device("meta")  # where nothing can be computed


def raised_by(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("there was memory for it")


def of_accelerator(message: str, code: int) -> torch.AcceleratorError:
    error = torch.AcceleratorError(message)
    error.error_code = code  # as torch sets it
    return error


NO_MEMORY = {
    "torch on a CPU": raised_by(lambda: torch.empty(2**50, dtype=torch.uint8)),
    "torch on Windows": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 112 bytes."),
    "NumPy": raised_by(lambda: np.empty(2**60, np.uint8)),
    "C++": RuntimeError("std::bad_alloc"),
    "torch on a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "CUDA": of_accelerator("CUDA error: out of memory\nCUDA kernel errors might be reported ...", code=2),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "Triton": RuntimeError("Triton Error [CUDA]: out of memory"),
}


@pytest.mark.parametrize("kind", NO_MEMORY)
def test_no_memory_is_known_whatever_the_error_is_called(kind: str):
    judged = judge(NO_MEMORY[kind], LOST)
    assert isinstance(judged, StepTooLargeError)
    assert "Tried" not in str(judged) and "\n" not in str(judged)


def test_whether_a_device_is_lost_is_found_out_by_trying_it():
    error = RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
    assert judge(error, CPU) is error
    judged = judge(error, LOST)
    assert isinstance(judged, DeviceLostError)
    assert str(judged) == f"the device is lost ({error})"


def test_other_errors_ask_nothing_of_the_device():
    for error in (ValueError("no such CUDA token"), DeviceLostError("out of memory")):
        assert judge(error, LOST) is error
    illegal = of_accelerator("CUDA error: an illegal memory access, not out of memory\nmore", code=700)
    assert str(judge(illegal, CPU)) == "the device is lost (CUDA error: an illegal memory access, not out of memory)"


class Draws:
    def read(self) -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access")


def test_a_device_may_be_lost_while_a_step_is_waited_for():
    times = {"prepare_ns": 0, "forward_ns": 0, "sample_ns": 0}
    launched = LaunchedStep(Step(0), Draws(), DeviceTimer(CPU), **times, replayed=None, observe=lambda *_: None)
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        launched.result()


def test_tokens_are_drawn_a_few_rows_at_a_time_where_memory_is_short():
    """With the log-probabilities of those rows that want them."""
    tried, released = [], []

    class Tight(Accelerator):
        @staticmethod
        def sample(logits: torch.Tensor, requests: Any) -> None:
            tried.append(len(requests))
            if len(requests) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")

    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(temperature=1.0, seed=i, logprobs=3 if i % 2 else None) for i in range(6)]
    requests = [Request(i, [1, 2, 3], params[i], seed=i) for i in range(6)]
    step = Step(0, [StepEntry(request, 0, 3, samples=True, logits_entry=i) for i, request in enumerate(requests)])
    tokens = draw(logits, requests)
    logprobs = Logprobs(logits, requests, tokens).read()
    draws = StepSampler(lambda: released.append("memory"), Tight).sample(step, list(range(6)), logits)
    assert draws is not None
    assert draws.read() == [((i, 0), int(tokens[i]), logprobs[i]) for i in range(6)]
    assert [logprobs[i] is None for i in range(6)] == [True, False] * 3
    assert tried == [6, 3, 1, 1, 1, 1, 1, 1]
    assert len(released) == 2


class Event:
    """An event of a GPU; time is the number of events that were recorded before it."""

    recorded: ClassVar[list[Event]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.ended = False

    def record(self) -> None:
        self.recorded.append(self)

    def synchronize(self) -> None:
        self.ended = True

    def elapsed_time(self, end: Event) -> float:
        assert end.ended
        return 1.5 * (self.recorded.index(end) - self.recorded.index(self))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_takes_its_time_on_the_gpu_or_else_all_of_the_hosts(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.recorded.clear()
    timer, observed = DeviceTimer(torch.device(device)), []
    timer.mark()
    timer.mark()
    assert len(Event.recorded) == (3 if device == "cuda" else 0)
    times = {"prepare_ns": 1_000, "forward_ns": 20_000, "sample_ns": 300}
    step, graph = Step(0), device == "cuda"
    launched = LaunchedStep(step, None, timer, **times, replayed=graph, observe=lambda *given: observed.append(given))
    result = launched.result()
    assert (result.prepare_ns, result.forward_ns, result.sample_ns, result.replayed) == (*times.values(), graph)
    assert result.device_ns == (3_000_000 if device == "cuda" else 20_000)
    assert observed == [(step, pytest.approx(3e-3 if device == "cuda" else 21.3e-6))]
    assert (result.token_ids, result.errors, result.mask_ns) == ([], {}, StepResult([], []).mask_ns)
