"""Matrix products in float32 through oneDNN, on CPUs where torch's own choice, MKL, leaves half of the machine idle.

MKL uses AVX-512 on its maker's CPUs only. On an AMD CPU that has it, oneDNN, which is part of torch too and which torch itself uses
in bfloat16, is more than twice as fast once a product is large enough. Inside `onednn_products` the kernels of `mm` and `addmm` are
replaced for the whole process, so everything that multiplies matrices gains: forward and backward passes, heads, experts. The
values differ from MKL's by the rounding of float32 alone. Training and scoring run in such a block. Decoding does not, because most
of its products are small, and a replaced kernel costs each of them two microseconds: the inference engine asks `least_rows` once,
and calls `product` itself.

Shapes: M rows and N columns of a product, K terms in each of its sums.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from components.models.devices import cpu_name

LEAST_SIZE = 2**20  # M N K from which a product gains; below, starting oneDNN takes longer than MKL does in all


def pays() -> bool:
    """Whether this is a CPU that MKL does not use fully, and this torch has what it takes.

    With `ATEN_CPU_CAPABILITY=avx2` in the environment, torch's own switch, it is not.
    """
    is_built_in = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return is_built_in and torch.backends.cpu.get_cpu_capability() == "AVX512" and cpu_name().startswith("AMD")


@contextlib.contextmanager
def onednn_products() -> Iterator[None]:
    """Inside the block, large products of float32 matrices on the CPU run in oneDNN, where it pays; nothing changes elsewhere."""
    if not pays():
        yield
        return
    library = _replace_kernels()
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def least_rows(*factors_KN: Tensor) -> float:
    """Rows that a matrix needs for `product` with every one of these to gain; infinite where it never does."""
    if not pays() or any(b_KN.dtype != torch.float32 or b_KN.device.type != "cpu" for b_KN in factors_KN):
        return math.inf
    return LEAST_SIZE / min(b_KN.numel() for b_KN in factors_KN)


def product(a_MK: Tensor, b_KN: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The matrix product in oneDNN, [M, N] and contiguous; or `out`, to which it is copied.

    A transposed first factor, as in a weight's gradient, has to be copied; or else the transposed product is worked out, and
    copied: whichever moves less.
    """
    (m, k), n = a_MK.shape, b_KN.shape[1]
    moved = m * n + (0 if b_KN.t().is_contiguous() else k * n)
    if not a_MK.is_contiguous() and moved < m * k:
        found_MN = _times_transposed(b_KN.t(), a_MK).t().contiguous()
    else:
        found_MN = _times_transposed(a_MK, b_KN.t())
    return found_MN if out is None else out.copy_(found_MN)


def sum_of(added_MN: Tensor, a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """What `torch.addmm` gives, with the product in oneDNN."""
    return product(a_MK, b_KN).add_(added_MN)


def _times_transposed(x_MK: Tensor, w_NK: Tensor) -> Tensor:
    """x w^T, by the operation that torch's compiler uses: it copies an x that is not contiguous, and takes any w that is, or whose
    transposed is.
    """
    if not (w_NK.is_contiguous() or w_NK.t().is_contiguous()):
        w_NK = w_NK.contiguous()
    out_MN: Tensor = torch.ops.mkldnn._linear_pointwise(x_MK, w_NK, None, "none", [], "")
    return out_MN


def _replace_kernels() -> torch.library.Library:
    """Registers the kernels; destroying the library brings torch's own back."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch tells that a kernel is replaced
        for name, own in KERNELS.items():
            kernel = _or_else(own, torch.library.get_kernel(f"aten::{name}", "CPU"))
            library.impl(name, kernel, "CPU", with_keyset=True)  # type: ignore[no-untyped-call]
    return library


def _or_else(own: Callable[..., Tensor | None], other: Any) -> Callable[..., Any]:
    """Our kernel, and torch's where ours gives nothing."""

    def kernel(keys: Any, *arguments: Any, **options: Any) -> Any:
        found = own(*arguments, **options)
        return other.call_boxed(keys, *arguments, **options) if found is None else found

    return kernel


def _mm(a_MK: Tensor, b_KN: Tensor) -> Tensor | None:
    return product(a_MK, b_KN) if _gains(a_MK, b_KN) else None


def _mm_out(a_MK: Tensor, b_KN: Tensor, *, out: Tensor) -> Tensor | None:
    return product(a_MK, b_KN, out=out) if _gains(a_MK, b_KN, out) else None


def _addmm(added: Tensor, a_MK: Tensor, b_KN: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor | None:
    if not _gains(a_MK, b_KN) or added.dtype != torch.float32:
        return None
    found_MN = product(a_MK, b_KN)
    if alpha != 1:
        found_MN.mul_(alpha)
    return found_MN.add_(added, alpha=beta) if beta else found_MN


def _addmm_out(added: Tensor, a_MK: Tensor, b_KN: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor) -> Tensor | None:
    found_MN = _addmm(added, a_MK, b_KN, beta=beta, alpha=alpha) if _gains(a_MK, b_KN, out) else None
    return None if found_MN is None else out.copy_(found_MN)


def _addmm_(added_MN: Tensor, a_MK: Tensor, b_KN: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor | None:
    if not _gains(a_MK, b_KN, added_MN):
        return None
    found_MN = product(a_MK, b_KN)
    kept_MN = added_MN.mul_(beta) if beta else added_MN.zero_()
    return kept_MN.add_(found_MN, alpha=alpha)


def _gains(a_MK: Tensor, b_KN: Tensor, out: Tensor | None = None) -> bool:
    if a_MK.dtype != torch.float32 or b_KN.dtype != torch.float32 or not a_MK.ndim == b_KN.ndim == 2:
        return False
    (m, k), (k_too, n) = a_MK.shape, b_KN.shape
    fits = out is None or (out.dtype == torch.float32 and out.shape == (m, n))
    return m * n * k >= LEAST_SIZE and k == k_too and fits


KERNELS: dict[str, Callable[..., Tensor | None]] = {
    "mm": _mm,
    "mm.out": _mm_out,
    "addmm": _addmm,
    "addmm.out": _addmm_out,
    "addmm_": _addmm_,
}
