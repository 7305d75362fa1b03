"""Records torch's operations as they run, each with its result in the memory that it has in every replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from roseplay.kernels.cpu.arena import Arena

try:
    from roseplay.kernels.cpu import residual_add
except ImportError:  # Numba is an extra
    residual_add = None  # type: ignore[assignment]

_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_UNFIT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)


class NotReplayableError(RuntimeError):
    """A step does something that cannot be recorded, as the message explains."""


class Recorder(TorchDispatchMode):
    """While active, appends torch's operations to ``calls``, with their results in the arena.

    Raises ``NotReplayableError`` for an operation whose result depends on more than the contents of its tensors.
    """

    def __init__(self, arena: Arena, calls: list[Callable[[], Any]]) -> None:
        super().__init__()
        self._arena, self._calls = arena, calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        results = list(result) if isinstance(result, list | tuple) else [result]
        if not all(isinstance(x, torch.Tensor) for x in results):
            raise NotReplayableError(f"{func} returns numbers to the host")
        if any(x.is_mkldnn for x in results):
            raise NotReplayableError(f"{func} packs a weight in every step")
        mutable = func._schema.is_mutable
        if not mutable and any(_share_memory(x, y) for x in results for y in _tensors([args, *kwargs.values()])):
            return result  # a view: replays update it through its base
        if any(tag in func.tags for tag in _UNFIT) and not _indexes_by_integers(func, args):
            raise NotReplayableError(f"{func} depends on values or on random numbers")
        # The recorded calls must not keep memory from being reused later in the step.
        args = _mapped(self._arena.alias, args)
        kwargs = {name: _mapped(self._arena.alias, value) for name, value in kwargs.items()}
        if mutable:
            self._calls.append(partial(func, *args, **kwargs))
            return result
        kept = [self._arena.tensor(x) for x in results]
        if (
            func is torch.ops.aten.add.Tensor
            and residual_add is not None
            and not kwargs
            and residual_add.can_add(args[0], args[1])
        ):
            residual_add.add(args[0], args[1], self._arena.alias(kept[0]))
        elif func._overloadpacket.__name__ not in _ALLOCATIONS:
            self._calls.append(_written_to(func, args, kwargs, results, [self._arena.alias(x) for x in kept]))
        return kept[0] if isinstance(result, torch.Tensor) else type(result)(kept)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors among an operation's arguments, including those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Returns an argument with ``change`` applied to each of its tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return type(value)(_mapped(change, part) for part in value) if isinstance(value, list | tuple) else value


def _indexes_by_integers(func: Any, args: Any) -> bool:
    """Returns whether an operation indexes without masks: with masks, the sizes of results depend on values."""
    if func._overloadpacket is not torch.ops.aten.index:
        return False
    return all(index is None or index.dtype == torch.int64 for index in args[1])


def _share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.is_mkldnn or y.is_mkldnn:  # oneDNN's packed weights, which have no storage
        return x is y
    return x.numel() > 0 and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _written_to(
    func: Any, args: Any, kwargs: Any, found: list[torch.Tensor], kept: list[torch.Tensor]
) -> Callable[[], Any]:
    """Returns a call of the operation that writes its results to ``kept``, by an ``out`` overload if one computes the same.

    Copies ``found``, the results of this run, there now.
    """
    for x, y in zip(kept, found, strict=True):
        x.copy_(y)
    if func._overloadpacket.__name__ in ("_to_copy", "clone"):
        return partial(kept[0].copy_, args[0])
    if func not in _out_overloads:
        _out_overloads[func] = _find_out_overload(func, args, kwargs, found)
    overload = _out_overloads[func]
    if overload is not None:
        return partial(overload[0], *args, **kwargs, **dict(zip(overload[1], kept, strict=True)))

    def compute_and_copy() -> None:
        for x, y in zip(kept, _tensors([func(*args, **kwargs)]), strict=True):
            x.copy_(y)

    return compute_and_copy


_out_overloads: dict[Any, tuple[Any, list[str]] | None] = {}


def _find_out_overload(func: Any, args: Any, kwargs: Any, found: list[torch.Tensor]) -> tuple[Any, list[str]] | None:
    """Returns the overload that writes to given tensors, and the names of its arguments for them; None if none does."""
    for name in func._overloadpacket.overloads():
        overload = getattr(func._overloadpacket, name)
        names = [argument.name for argument in overload._schema.arguments if argument.is_out]
        if not names or len(names) != len(found):
            continue
        outs = [torch.empty_like(x) for x in found]
        addresses = [x.data_ptr() for x in outs]
        try:
            overload(*args, **kwargs, **dict(zip(names, outs, strict=True)))
        except (RuntimeError, TypeError):  # does not take these arguments
            continue
        if addresses == [x.data_ptr() for x in outs] and all(map(same_bits, found, outs)):
            return overload, names
    return None


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Returns whether two tensors are equal, NaNs included."""
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(x.nan_to_num(), y.nan_to_num())
