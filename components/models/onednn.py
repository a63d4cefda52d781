"""Matrix products in float32 through oneDNN, on CPUs where torch's own choice, MKL, leaves half of the machine idle.

MKL uses AVX-512 on its maker's CPUs only. On an AMD CPU that has it, oneDNN, which is part of torch too and which torch itself uses
in bfloat16, is more than twice as fast once a product is large enough. Inside `onednn_products` the kernels of `mm` are replaced
for the whole process, so everything that multiplies matrices gains: forward and backward passes, heads, experts. The values differ
from MKL's by the rounding of float32 alone.

Shapes: M rows and N columns of a product, K terms in each of its sums.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from components.models.devices import cpu_name

LEAST_SIZE = 2**20  # M N K from which a product gains; below, starting oneDNN takes longer than MKL does in all


def pays() -> bool:
    """Whether this is a CPU that MKL does not use fully, and this torch has what it takes."""
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


def product(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """The matrix product in oneDNN, [M, N] and contiguous.

    Of two transposed factors, as in a weight's gradient, one has to be copied: the smaller one.
    """
    flips = not a_MK.is_contiguous() and (b_KN.t().is_contiguous() or b_KN.shape[1] < a_MK.shape[0])
    if flips:
        return _times_transposed(b_KN.t(), a_MK).t().contiguous()
    return _times_transposed(a_MK, b_KN.t())


def _times_transposed(x_MK: Tensor, w_NK: Tensor) -> Tensor:
    """x w^T; the operation copies an x that is not contiguous, and takes a w that is the transposed of such a matrix as it is."""
    if not (w_NK.is_contiguous() or w_NK.t().is_contiguous()):
        w_NK = w_NK.contiguous()
    out_MN: Tensor = torch.ops.mkldnn._linear_pointwise(x_MK, w_NK, None, "none", [], "")
    return out_MN


def _replace_kernels() -> torch.library.Library:
    """Registers the kernels of `mm`; destroying the library brings torch's own back."""
    mm = torch.library.get_kernel("aten::mm", "CPU")
    mm_out = torch.library.get_kernel("aten::mm.out", "CPU")

    def multiply(keys: Any, a_MK: Tensor, b_KN: Tensor) -> Tensor:
        if _gains(a_MK, b_KN):
            return product(a_MK, b_KN)
        other: Tensor = mm.call_boxed(keys, a_MK, b_KN)
        return other

    def multiply_into(keys: Any, a_MK: Tensor, b_KN: Tensor, *, out: Tensor) -> Tensor:
        if _gains(a_MK, b_KN) and out.dtype == torch.float32 and out.shape == (a_MK.shape[0], b_KN.shape[1]):
            return out.copy_(product(a_MK, b_KN))
        other: Tensor = mm_out.call_boxed(keys, a_MK, b_KN, out=out)
        return other

    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch tells that a kernel is replaced
        library.impl("mm", multiply, "CPU", with_keyset=True)  # type: ignore[no-untyped-call]
        library.impl("mm.out", multiply_into, "CPU", with_keyset=True)  # type: ignore[no-untyped-call]
    return library


def _gains(a_MK: Tensor, b_KN: Tensor) -> bool:
    (m, k), (k_too, n) = a_MK.shape, b_KN.shape
    return m * n * k >= LEAST_SIZE and k == k_too and a_MK.dtype == b_KN.dtype == torch.float32
