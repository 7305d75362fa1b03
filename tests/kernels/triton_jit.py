"""Triton's compiler in a process whose kernels are interpreted: the kernels once more, compiled for a GPU that need not
be there, and a hook that notes each variant which Triton would compile."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def compiled(module: ModuleType) -> ModuleType:
    """Returns a second copy of a module whose kernels are compiled, not interpreted."""
    import triton

    spec = importlib.util.spec_from_file_location(f"{module.__name__}_compiled", module.__file__)
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    sys.modules[copy.__name__] = copy  # Triton reads the source of a kernel's module
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = False
        spec.loader.exec_module(copy)
    return copy


def stub_driver() -> SimpleNamespace:
    """A driver of an H100 that can neither compile nor launch."""
    from triton.backends.compiler import GPUTarget

    return SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )


@contextlib.contextmanager
def variants(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Iterator[set[tuple[str, str]]]:
    """While entered, the modules' kernels compute nothing; yields the variants that a GPU would have compiled so far.

    A variant is the kernel's name and the key by which Triton looks for its code: the types of its arguments, which of
    them are multiples of 16, and its constants.
    """
    import triton

    found: set[tuple[str, str]] = set()

    def note(*, key: str, fn: Any, **others: Any) -> bool:
        found.add((fn.name, key))
        return True  # do not compile, do not launch

    for module in modules:
        copy = compiled(module)
        for name in vars(copy):
            if name.endswith("_kernel"):
                monkeypatch.setattr(module, name, getattr(copy, name))
    with triton.knobs.runtime.scope(), monkeypatch.context() as patch:
        patch.setattr(triton.runtime.driver, "_active", stub_driver())
        triton.knobs.runtime.jit_cache_hook = note
        yield found
