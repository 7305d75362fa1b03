"""Vectors of 16 float32 and raw pointers for kernels compiled by Numba, through its extension interface.

If sums must stay in registers, loops that the compiler vectorises itself are several times slower than vectors written
as LLVM instructions. LLVM maps these to the machine's registers (one of AVX-512, two of AVX2, four of NEON).
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, BinaryIO

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

_LOCK_WITHIN_S = 60.0
LANES = 16
FAST = ("reassoc", "contract", "arcp", "nsz")
FLOAT, INT = ir.FloatType(), ir.IntType(32)
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)

# 2**x on [-0.5, 0.5]: Taylor's terms with the last ones fitted; relative error below 3e-7.
_POWER_OF_TWO = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)


@cache
def _sources() -> str:
    """Returns a hash of all files that kernels are compiled from: Numba's cache checks only the file that defines one."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _marked(function: Callable[..., None]) -> Callable[..., None]:
    """Returns the same function with ``_sources()`` in its closure, so that it is part of the key in Numba's cache."""
    code = function.__code__
    code = code.replace(co_freevars=(*code.co_freevars, "sources"))
    closure = (*(function.__closure__ or ()), CellType(_sources()))
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)


def compiled(function: Callable[..., None], **options: Any) -> Any:
    """Compile a function that Python calls, of an array of int64 and an int64."""
    return _compile(function, numba.njit, types.void(types.int64[::1], types.int64), nogil=True, **options)


def kernel(function: Callable[..., None]) -> Any:
    """Compile a C function of a pointer to int64 and a piece's number (see ``parallel``); it has an ``address``."""
    signature = types.void(types.CPointer(types.int64), types.int64)
    return _compile(function, numba.cfunc, signature, nopython=True, fastmath=set(FAST))


def _compile(function: Callable[..., None], compiler: Callable[..., Any], signature: Any, **options: Any) -> Any:
    """Compile a function; the machine code is cached on disk if Numba can write there."""
    function, options = _marked(function), {"error_model": "numpy", **options}
    try:
        with _only_process(function.__code__.co_filename):
            return compiler(signature, cache=True, **options)(function)
    except RuntimeError:
        return compiler(signature, **options)(function)


@contextlib.contextmanager
def _only_process(file: str) -> Iterator[None]:
    """Wait until no other process compiles a function of this file, and make others wait.

    Of processes that start at once, one compiles then, and the others load what it has written. Numba does not lock the
    index of a function's machine code: processes that add to it at once lose entries, or mix them up. A process that
    holds the lock for longer than a function takes to compile was stopped, and is not waited for.
    """
    with contextlib.ExitStack() as opened:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # there is no such file, or its file system has no locks
                _lock(opened.enter_context(open(file, "rb")))
        yield


def _lock(file: BinaryIO) -> None:
    """Lock a file until it is closed; gives up after ``_LOCK_WITHIN_S``."""
    until = time.monotonic() + _LOCK_WITHIN_S
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.01)


class Emitter:
    """Emits vector instructions into a function that is being compiled."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    @staticmethod
    def int64(number: int) -> Any:
        return ir.Constant(ir.IntType(64), number)

    def call(self, name: str, result: Any, *args: Any) -> Any:
        kind = ir.FunctionType(result, [arg.type for arg in args])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        of_floats = getattr(result, "element", result) == FLOAT
        return self.builder.call(function, args, fastmath=FAST if of_floats else ())

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.call(f"llvm.fma.v{LANES}f32", FLOATS, x, y, z)

    def broadcast(self, number: Any) -> Any:
        """Returns a scalar in every lane."""
        vector = ir.VectorType(number.type, LANES)
        one = self.builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(INT, 0))
        return self.broadcast_lane(one, 0)

    def broadcast_lane(self, vector: Any, number: int) -> Any:
        """Returns the number of one lane in every lane."""
        return self.builder.shuffle_vector(
            vector, ir.Constant(vector.type, ir.Undefined), ir.Constant(INTS, [number] * LANES)
        )

    def load(self, pointer: Any, first: int, kind: Any, count: int) -> Any:
        """Returns a vector of ``count`` numbers of type ``kind``, from the ``first`` one at a pointer on."""
        b = self.builder
        at = b.gep(b.bitcast(pointer, kind.as_pointer()), [ir.Constant(INT, first)])
        return b.load(b.bitcast(at, ir.VectorType(kind, count).as_pointer()), align=2)

    def prefetch(self, at: Any) -> None:
        """Prefetch a cache line into the second-level cache; ``at`` is an ``i8*`` and may be invalid."""
        kind = ir.FunctionType(ir.VoidType(), [at.type, INT, INT, INT])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        read, locality, data = 0, 2, 1
        self.builder.call(function, [at, *(ir.Constant(INT, flag) for flag in (read, locality, data))])

    def rounded(self, x: Any) -> Any:
        """Returns the bits of the nearest bfloat16, ties to even."""
        b = self.builder
        bits, sixteen, one, half = (
            b.bitcast(x, INTS),
            *(ir.Constant(INTS, [number] * LANES) for number in (16, 1, 0x7FFF)),
        )
        bits = b.add(b.add(bits, b.and_(b.lshr(bits, sixteen), one)), half)
        return b.trunc(b.lshr(bits, sixteen), ir.VectorType(ir.IntType(16), LANES))

    def exp(self, x: Any) -> Any:
        """Returns ``e**x`` for x up to 0; below -87, e**-87; NaN for NaN."""
        b = self.builder
        y = b.fmul(x, ir.Constant(FLOATS, [1.4426950408889634] * LANES), flags=FAST)
        least = ir.Constant(FLOATS, [-126.0] * LANES)
        y = b.select(b.fcmp_ordered("<", y, least), least, y)  # maxnum would drop NaN
        whole = self.call(f"llvm.rint.v{LANES}f32", FLOATS, y)
        part = b.fsub(y, whole)
        power, *others = (ir.Constant(FLOATS, [c] * LANES) for c in _POWER_OF_TWO)
        for other in others:
            power = self.fma(power, part, other)
        exponent = b.add(b.fptosi(whole, INTS), ir.Constant(INTS, [127] * LANES))
        return b.fmul(power, b.bitcast(b.shl(exponent, ir.Constant(INTS, [23] * LANES)), FLOATS))


def by_count(builder: Any, count: Any, most: int, emit: Callable[[int], None]) -> None:
    """Emit code for each count from 1 to ``most``, of which that for ``count`` runs."""
    done = builder.append_basic_block("done")
    choice = builder.switch(count, done)
    for number in range(1, most + 1):
        block = builder.append_basic_block(f"count_{number}")
        choice.add_case(ir.Constant(count.type, number), block)
        with builder.goto_block(block):
            emit(number)
            builder.branch(done)
    builder.position_at_end(done)


@intrinsic  # type: ignore[untyped-decorator]
def address(context, array, index):
    """Returns a pointer to an element of a C-contiguous array, indexed as if it had one dimension."""
    signature = types.CPointer(array.dtype)(array, index)

    def generate(context, builder, signature, args):
        return builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def advance(context, at, numbers):
    """Returns a pointer advanced by ``numbers`` elements."""

    def generate(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return at(at, numbers), generate


@intrinsic  # type: ignore[untyped-decorator]
def pointer(context, place, kind):
    """Returns an address as a pointer to numbers of a type."""
    signature = types.CPointer(kind.dtype)(place, kind)

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return signature, generate


@numba.njit(inline="always")
def array_at(place, kind, first, count):
    """Returns ``count`` numbers of a type as an array, from the ``first`` one at an address on."""
    return numba.carray(advance(pointer(place, kind), first), count)


def float_bits(number: float) -> int:
    """Returns the bits of a float64 as an int64, for ``float_from_bits``."""
    bits: int = struct.unpack("q", struct.pack("d", number))[0]
    return bits


@intrinsic  # type: ignore[untyped-decorator]
def float_from_bits(context, bits):
    """Returns the float64 with the bits of an int64."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(bits), generate


@intrinsic  # type: ignore[untyped-decorator]
def call(context, place, arguments, piece):
    """Call the function at address ``place`` with a pointer and a number."""
    signature = types.void(place, arguments, piece)

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [arg.type for arg in args[1:]])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def prefetch(context, pointer, numbers):
    """Prefetch ``numbers`` numbers (a literal) into the second-level cache."""
    signature = types.void(pointer, numbers)
    size = numbers.literal_value * pointer.dtype.bitwidth // 8

    def generate(context, builder, signature, args):
        begin = builder.bitcast(args[0], ir.IntType(8).as_pointer())
        for offset in range(0, size, 64):
            Emitter(builder).prefetch(builder.gep(begin, [ir.Constant(INT, offset)]))
        return context.get_dummy_value()

    return signature, generate
