"""RMS norms in one Triton launch, also together with the residual addition before them and the norm before that."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn

from roseplay.kernels.replace_modules import agrees, parts_of_rms_norm

_LARGEST = 2**15  # numbers of a row, which a program holds


@triton.jit
def _normalise(numbers, weight, eps, dims, mask, DIM: tl.constexpr, PLUS_ONE: tl.constexpr):
    scale = tl.load(weight + dims, mask=mask, other=0.0).to(tl.float32)
    if PLUS_ONE:
        scale += 1.0
    return numbers * tl.rsqrt(tl.sum(numbers * numbers, 0) / DIM + eps) * scale


@triton.jit
def rms_norm_kernel(
    out, x, weight, eps, x_outer_stride, x_row_stride, out_outer_stride, out_row_stride,
    DIM: tl.constexpr, PAD: tl.constexpr, PLUS_ONE: tl.constexpr,
):  # fmt: skip
    """Normalise one row, in float32. Grid: rows, outer."""
    row, outer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, PAD)
    mask = dims < DIM
    numbers = tl.load(x + outer * x_outer_stride + row * x_row_stride + dims, mask=mask, other=0.0).to(tl.float32)
    numbers = _normalise(numbers, weight, eps, dims, mask, DIM, PLUS_ONE)
    target = out + outer * out_outer_stride + row * out_row_stride + dims
    tl.store(target, numbers.to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_norm_kernel(
    total, normed, residual, x, after, before, after_eps, before_eps, residual_stride, x_stride,
    DIM: tl.constexpr, PAD: tl.constexpr,
    AFTER: tl.constexpr, BEFORE: tl.constexpr, AFTER_PLUS_ONE: tl.constexpr, BEFORE_PLUS_ONE: tl.constexpr,
):  # fmt: skip
    """Add one row of ``x`` to the residual, rounded as torch rounds it. Grid: rows.

    With ``AFTER``, ``x`` is normalised first; with ``BEFORE``, ``normed`` becomes the norm of the sum.
    """
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, PAD)
    mask = dims < DIM
    dtype: tl.constexpr = total.dtype.element_ty
    numbers = tl.load(x + row * x_stride + dims, mask=mask, other=0.0).to(tl.float32)
    if AFTER:
        numbers = _normalise(numbers, after, after_eps, dims, mask, DIM, AFTER_PLUS_ONE).to(dtype).to(tl.float32)
    numbers += tl.load(residual + row * residual_stride + dims, mask=mask, other=0.0).to(tl.float32)
    rounded = numbers.to(dtype)
    tl.store(total + row * DIM + dims, rounded, mask=mask)
    if BEFORE:
        numbers = _normalise(rounded.to(tl.float32), before, before_eps, dims, mask, DIM, BEFORE_PLUS_ONE)
        tl.store(normed + row * DIM + dims, numbers.to(dtype), mask=mask)


class FusedRMSNorm(nn.Module):
    """Replaces an RMS norm, ``plain``, which still computes inputs that the kernel does not take.

    ``expect`` gives it a result in advance, computed by the launch that computed the input.
    """

    def __init__(self, plain: nn.Module, weight: nn.Parameter, eps: float, plus_one: bool) -> None:
        super().__init__()
        self.weight, self.eps, self.plus_one = weight, eps, plus_one
        self._plain = [plain]  # in a list, so that it is not a submodule
        self._expected: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def of(cls, module: nn.Module) -> FusedRMSNorm | None:
        """Returns the replacement of an RMS norm that scales by its weight, or by 1 + weight as Gemma's do; None for other
        modules."""
        parts = parts_of_rms_norm(module)
        if parts is None or isinstance(module, cls):
            return None
        norms = (cls(module, *parts, plus_one) for plus_one in (False, True))
        return next((norm for norm in norms if agrees(module, norm, len(parts[0]), parts[0])), None)

    def expect(self, x: torch.Tensor, normed: torch.Tensor) -> None:
        """Return ``normed`` if the next call is for the tensor ``x``."""
        self._expected = x, normed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        expected, self._expected = self._expected, None
        if expected is not None and expected[0] is x:
            return expected[1]
        if not fits(x) or x.dtype != self.weight.dtype:
            return self._plain[0](x)  # type: ignore[no-any-return]
        return rms_norm(x, self.weight, self.eps, plus_one=self.plus_one)


def fits(x: torch.Tensor) -> bool:
    """Returns whether ``rms_norm`` takes these rows: ``[1, tokens, dim]``, or ``[1, heads, tokens, dim]`` in any layout with
    dense rows."""
    return x.dim() in (3, 4) and x.shape[0] == 1 and x.stride(-1) == 1 and x.shape[-1] <= _LARGEST


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, plus_one: bool) -> torch.Tensor:
    """Returns ``x`` over its root mean square, times ``weight [dim]`` or 1 + ``weight``, in the layout of ``x``."""
    out = torch.empty_like(x)
    rows, outer = x.shape[-2], x.shape[1] if x.dim() == 4 else 1
    dim = x.shape[-1]
    pad, num_warps = _row(dim)
    with torch.cuda.device_of(x):
        rms_norm_kernel[rows, outer](
            out, x, weight, eps, x.stride(1), x.stride(-2), out.stride(1), out.stride(-2),
            DIM=dim, PAD=pad, PLUS_ONE=plus_one, num_warps=num_warps,
        )  # fmt: skip
    return out


def can_add(residual: torch.Tensor, x: torch.Tensor) -> bool:
    """Returns whether ``add_norm`` takes these: two ``[1, tokens, dim]`` of one dtype."""
    return (
        residual.dim() == 3 and residual.shape == x.shape and residual.dtype == x.dtype and fits(residual) and fits(x)
    )


def add_norm(
    residual: torch.Tensor, x: torch.Tensor, after: FusedRMSNorm | None, before: FusedRMSNorm | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ``residual + after(x)`` and the norm ``before`` of that sum, both ``[1, tokens, dim]``.

    Without ``after``, ``x`` itself is added; without ``before``, the second result is the sum again.
    """
    dim = x.shape[-1]
    pad, num_warps = _row(dim)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    normed = total if before is None else torch.empty_like(total)
    with torch.cuda.device_of(x):
        add_norm_kernel[(x.shape[1],)](
            total, normed, residual, x,
            x if after is None else after.weight, x if before is None else before.weight,
            0.0 if after is None else after.eps, 0.0 if before is None else before.eps,
            residual.stride(1), x.stride(1), DIM=dim, PAD=pad, AFTER=after is not None, BEFORE=before is not None,
            AFTER_PLUS_ONE=after is not None and after.plus_one, BEFORE_PLUS_ONE=before is not None and before.plus_one,
            num_warps=num_warps,
        )  # fmt: skip
    return total, normed


def _row(dim: int) -> tuple[int, int]:
    """Returns the padded size of a row, and the warps that compute it."""
    pad = max(16, triton.next_power_of_2(dim))
    return pad, min(16, max(1, pad // 512))
