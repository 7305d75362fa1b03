"""The CPU's features: the only place that checks which instructions it has.

With ``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` (such as ``haswell`` and ``+avx2,+fma``), Numba compiles for another
CPU. Then only the features named there count, so that a machine can stand in for a lesser one.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Mapping
from functools import cache

import numba
from llvmlite import binding

# Linux grants the state of AMX's tiles only to processes that request it (arch/x86/kernel/fpu/xstate.c).
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


def has(*names: str) -> bool:
    """Returns whether the CPU has all of these features, by LLVM's names."""
    features = _features()
    return all(features.get(name, False) for name in names)


def has_neon() -> bool:
    """Returns whether the CPU is an AArch64 one, all of which have NEON."""
    return platform.machine().lower() in ("aarch64", "arm64")


@cache
def has_amx() -> bool:
    """Returns whether bfloat16 tiles can be multiplied: the CPU has AMX, and Linux lets this process use it."""
    return has("amx-tile", "amx-bf16") and _is_granted()


@cache
def _features() -> Mapping[str, bool]:
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES:
        named = (word.strip() for word in (numba.config.CPU_FEATURES or "").split(","))
        return {word[1:]: word.startswith("+") for word in named if word}
    features = dict(binding.get_host_cpu_features())
    return features if numba.config.ENABLE_AVX else {name: on and "avx" not in name for name, on in features.items()}


def _is_granted() -> bool:
    """Request the tiles' state, for all threads of the process; returns whether it is granted."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    try:
        return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0
    except (OSError, AttributeError):
        return False
