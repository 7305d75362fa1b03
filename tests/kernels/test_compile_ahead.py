"""Triton's kernels are collected instead of launched, then compiled in threads; here without a GPU."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import roseplay.kernels.cuda
from roseplay.kernels.cuda.compile_ahead import CompileAhead
from tests.kernels.conftest import needs_triton
from tests.kernels.triton_jit import as_on_an_h100, compiled

pytestmark = needs_triton


@pytest.fixture(scope="module")
def plan() -> ModuleType:
    from roseplay.kernels.cuda.attention import plan

    return compiled(plan)


@pytest.fixture
def kernels(plan: ModuleType) -> Iterator[ModuleType]:
    with as_on_an_h100():
        yield plan


def launch(kernels: ModuleType, block_n: int) -> None:
    programs, seq_lens = torch.empty(3, 5, dtype=torch.int32), torch.empty(3, dtype=torch.int64)
    kernels.plan_kernel[1,](programs, seq_lens, 3, 5, BLOCK_N=block_n, WINDOW=0, CHUNK=0, BLOCK=16)


def test_kernels_are_collected_instead_of_launched(kernels: ModuleType):
    ahead = CompileAhead()
    with ahead.collecting():
        for block_n in (2, 4, 4):
            launch(kernels, block_n)
    assert [name for name, _ in ahead.kernels] == ["plan_kernel"] * 2
    assert all(kernel is kernels.plan_kernel for kernel, _ in ahead.kernels.values())


def test_triton_takes_the_arguments_of_every_kernel():
    """Triton writes the function that reads a launch's arguments; a name of its own variables would not reach the kernel."""
    package, launched = roseplay.kernels.cuda, 0
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        module = importlib.import_module(found.name)
        kernels = {name: value for name, value in vars(module).items() if name.endswith("_kernel")}
        own = [name for name, kernel in kernels.items() if kernel.fn.__module__ == found.name]
        copy, ahead = compiled(module) if own else module, CompileAhead()
        with as_on_an_h100(), ahead.collecting():
            for kernel in (getattr(copy, name) for name in own):
                kernel[1,](*(1 if parameter.is_constexpr else torch.empty(1) for parameter in kernel.params))
        assert [name for name, _ in ahead.kernels] == own
        launched += len(own)
    assert launched > 10


def test_kernels_of_other_threads_are_not_collected(kernels: ModuleType):
    ahead, seen = CompileAhead(), []

    def other() -> None:
        try:
            launch(kernels, 2)
        except Exception as error:  # Triton went on to compile it
            seen.append(error)

    with ahead.collecting():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(seen) == 1 and not ahead.kernels


def test_an_earlier_hook_is_asked_first_and_restored(kernels: ModuleType):
    import triton

    asked: list[Any] = []

    def hook(**what: Any) -> bool:
        asked.append(what["fn"].name)
        return True

    triton.knobs.runtime.jit_cache_hook = hook
    ahead = CompileAhead()
    with ahead.collecting():
        launch(kernels, 2)
    assert asked == ["plan_kernel"] and not ahead.kernels
    assert triton.knobs.runtime.jit_cache_hook is hook


def test_what_was_collected_is_compiled_at_once():
    """The second compilation must begin before the first has ended."""
    both = threading.Barrier(2)
    done: list[str] = []

    def preload(data: str) -> None:
        both.wait(30)
        done.append(data)

    ahead = CompileAhead()
    ahead.kernels = {("kernel", key): (SimpleNamespace(preload=preload), key) for key in ("a", "b")}
    ahead.compile(torch.device("cpu"), threads=2)
    assert sorted(done) == ["a", "b"]


def test_errors_of_the_compiler_are_raised():
    def preload(data: str) -> None:
        raise ValueError(data)

    ahead = CompileAhead()
    ahead.kernels = {("kernel", "key"): (SimpleNamespace(preload=preload), "no registers left")}
    with pytest.raises(ValueError, match="no registers left"):
        ahead.compile(torch.device("cpu"))


COMPILE = """
import torch, triton
from roseplay.kernels.cuda.attention import plan as kernels
from roseplay.kernels.cuda.compile_ahead import CompileAhead
from tests.kernels.test_compile_ahead import launch
from tests.kernels.conftest import needs_triton
from tests.kernels.triton_jit import stub_driver
triton.runtime.driver.set_active(stub_driver())
ahead, again = CompileAhead(), CompileAhead()
with ahead.collecting():
    launch(kernels, 2), launch(kernels, 4)
ahead.compile(torch.device("cpu"), threads=2)
with again.collecting():
    launch(kernels, 8)
    try:
        launch(kernels, 4)  # is found, and cannot be launched
    except AttributeError as error:
        print(error)
print(len(ahead.kernels), len(again.kernels))
"""


@pytest.mark.slow
def test_compiled_kernels_are_found_when_they_are_launched(tmp_path: Path, repository: Path):
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(repository)}
    command = [sys.executable, "-c", COMPILE]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert result.stdout.splitlines()[-1:] == ["2 1"], result.stderr[-2000:]
    assert "launcher_cls" in result.stdout
