"""Counts what a GPU would launch: torch's operations that compute or copy, and Triton's kernels, which compute nothing here."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import roseplay.kernels.cuda
from tests.kernels.triton_jit import replaced_kernels

_NO_LAUNCH = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")  # these allocate


class Launches(TorchDispatchMode):
    """While entered, counts launches by name in ``counts``."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._replaced = replaced_kernels(_modules(), lambda module, name: _Kernel(name, self.counts))

    def __enter__(self) -> Self:
        self._replaced.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._replaced.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, found = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        # What returns its input's memory is a view, unless it writes to it.
        new = _memory(found) - _memory([args, kwargs])
        if name not in _NO_LAUNCH and (func._schema.is_mutable or new):
            self.counts[name] += 1
        return found


def _memory(tree: Any) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tree_leaves(tree) if isinstance(x, torch.Tensor)}


class _Kernel:
    def __init__(self, name: str, counts: Counter[str]) -> None:
        self._name, self._counts = name, counts

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **more: Any) -> None:
            self._counts[self._name] += 1

        return launch


def _modules() -> list[Any]:
    package = roseplay.kernels.cuda
    names = [found.name for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [importlib.import_module(name) for name in names]
