"""Triton's compiler in a process whose kernels are interpreted: the kernels once more, compiled for a GPU that need not
be there, and a hook that notes each variant which Triton would compile."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any


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
def as_on_an_h100() -> Iterator[None]:
    """While entered, Triton compiles for an H100, as far as it does so before a launch."""
    import triton

    with triton.knobs.runtime.scope():
        triton.runtime.driver.set_active(stub_driver())
        try:
            yield
        finally:
            triton.runtime.driver.set_active(None)


@contextlib.contextmanager
def replaced_kernels(modules: Sequence[ModuleType], make: Callable[[ModuleType, str], Any]) -> Iterator[None]:
    """While entered, the modules' kernels are what ``make`` returns for a module and a name."""
    before = [(module, name, vars(module)[name]) for module in modules for name in vars(module) if _is_kernel(name)]
    try:
        for module, name, _ in before:
            setattr(module, name, make(module, name))
        yield
    finally:
        for module, name, kernel in before:
            setattr(module, name, kernel)


def _is_kernel(name: str) -> bool:
    return name.endswith("_kernel")


@contextlib.contextmanager
def variants(*modules: ModuleType) -> Iterator[set[tuple[str, str]]]:
    """While entered, the modules' kernels compute nothing; yields the variants that a GPU would have compiled so far.

    A variant is the kernel's name and the key by which Triton looks for its code: the types of its arguments, which of
    them are multiples of 16, and its constants.
    """
    import triton

    found: set[tuple[str, str]] = set()

    def note(*, key: str, fn: Any, **others: Any) -> bool:
        found.add((fn.name, key))
        return True  # do not compile, do not launch

    copies = {module: compiled(module) for module in modules}
    with replaced_kernels(modules, lambda module, name: getattr(copies[module], name)), as_on_an_h100():
        triton.knobs.runtime.jit_cache_hook = note
        yield found
