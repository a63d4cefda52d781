"""Matrix products through oneDNN: the same numbers as torch's own, in every pass, and only where it is asked for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import components.models.onednn as onednn
from components.models.onednn import LEAST_SIZE, least_rows, onednn_products, product, sum_of
from components.models.readout import nll_sum

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch is built without oneDNN")
LARGE = (128, 96, 160)  # M, K, N
assert LARGE[0] * LARGE[1] * LARGE[2] >= LEAST_SIZE


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Size, torch.Size]]:
    """Shapes of the products that went to oneDNN, on any CPU."""
    seen: list[tuple[torch.Size, torch.Size]] = []

    def counted(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        seen.append((a.shape, b.shape))
        return product(a, b, out=out)

    monkeypatch.setattr(onednn, "pays", lambda: True)
    monkeypatch.setattr(onednn, "product", counted)
    return seen


def layouts(n_rows: int, n_columns: int, generator: torch.Generator) -> Iterator[Tensor]:
    """A random matrix in every layout that a pass could bring."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    yield draw(n_rows, n_columns)
    yield draw(n_columns, n_rows).t()
    yield draw(n_rows, 2 * n_columns)[:, n_columns:]
    yield draw(2 * n_rows, n_columns)[::2]
    yield draw(n_rows, 2 * n_columns)[:, ::2]
    yield draw(1, n_columns).expand(n_rows, -1)
    yield draw(n_rows, 1).expand(-1, n_columns)


@pytest.mark.parametrize(("m", "k", "n"), [(130, 70, 150), (150, 70, 30), (8, 300, 500)])
def test_a_product_is_that_of_float64_for_factors_of_any_layout(m: int, k: int, n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for a, b in itertools.product(layouts(m, k, generator), layouts(k, n, generator)):
        found = product(a, b)
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-5, atol=2e-4)


def test_forward_and_backward_go_through_it_and_the_kernel_is_torchs_own_again_afterwards(
    calls: list[tuple[torch.Size, torch.Size]],
) -> None:
    m, k, n = LARGE
    x = torch.randn(2, m // 2, k, requires_grad=True)
    weight = torch.randn(n, k, requires_grad=True)
    expected = torch.autograd.grad(torch.nn.functional.linear(x, weight).square().sum(), (x, weight))
    assert not calls
    with onednn_products():
        found = torch.autograd.grad(torch.nn.functional.linear(x, weight).square().sum(), (x, weight))
    assert sorted(calls) == sorted([((m, k), (k, n)), ((m, n), (n, k)), ((n, m), (m, k))])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)
    torch.mm(x.detach().flatten(0, 1), weight.detach().t())
    assert len(calls) == 3


def test_a_product_can_be_written_to_a_given_tensor(calls: list[tuple[torch.Size, torch.Size]]) -> None:
    m, k, n = LARGE
    a, b, out, columns = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n), torch.empty(m, 2 * n)[:, :n]
    with onednn_products():
        assert torch.mm(a, b, out=out) is out
        torch.mm(a, b, out=columns)
        assert torch.mm(a, b, out=torch.empty(0)).shape == (m, n)  # torch's own kernel, that gives it its size
    assert len(calls) == 2
    torch.testing.assert_close(out, a @ b, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(columns, out, rtol=0, atol=0)


@pytest.mark.parametrize(("beta", "alpha"), [(1.0, 1.0), (0.0, 1.0), (0.5, -2.0), (0.0, 3.0)])
def test_a_product_can_be_added_to_something(beta: float, alpha: float, calls: list[tuple[torch.Size, torch.Size]]) -> None:
    m, k, n = LARGE
    a, b, row, whole, out = torch.randn(m, k), torch.randn(k, n), torch.randn(n), torch.randn(m, n), torch.empty(m, n)
    expected = [beta * added.double() + alpha * (a.double() @ b.double()) for added in (row, whole, whole)]
    if beta == 0.0:
        row.fill_(torch.nan)  # what counts nothing may be anything
    with onednn_products():
        found = [
            torch.addmm(row, a, b, beta=beta, alpha=alpha),
            torch.addmm(whole, a, b, beta=beta, alpha=alpha, out=out),
            whole.addmm_(a, b, beta=beta, alpha=alpha),
        ]
    assert len(calls) == 3
    assert found[1] is out
    assert found[2] is whole
    torch.testing.assert_close([one.double() for one in found], expected, rtol=1e-5, atol=2e-4)


def test_the_loss_and_its_gradients_are_the_same(calls: list[tuple[torch.Size, torch.Size]]) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 64, generator=generator, requires_grad=True)
    head = torch.randn(500, 64, generator=generator).mul_(0.1).requires_grad_()
    labels = torch.randint(0, 500, (300,), generator=generator)

    def loss_and_gradients() -> tuple[Tensor, ...]:
        loss = nll_sum(hidden, head, labels)
        return loss, *torch.autograd.grad(loss, (hidden, head))

    expected = loss_and_gradients()
    with onednn_products():
        found = loss_and_gradients()
    assert len(calls) >= 3  # logits, and the gradients of both
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4, 8, 16), torch.float32), (LARGE, torch.float64), (LARGE, torch.bfloat16), (LARGE, torch.int64)]
)
def test_small_products_and_other_types_are_left_to_torch(
    shape: tuple[int, int, int], dtype: torch.dtype, calls: list[tuple[torch.Size, torch.Size]]
) -> None:
    m, k, n = shape
    a, b = (torch.randn(*size).mul(9).to(dtype) for size in ((m, k), (k, n)))
    expected = a @ b
    with onednn_products():
        assert torch.equal(a @ b, expected)
    assert not calls


def test_errors_and_counts_of_operations_are_torchs_own(calls: list[tuple[torch.Size, torch.Size]]) -> None:
    m, k, n = LARGE
    with onednn_products():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(torch.randn(m, k), torch.randn(k + 1, n))
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(torch.randn(m, k), torch.randn(k, n).double())
        with pytest.raises(RuntimeError, match="must be a matrix"):
            torch.mm(torch.randn(m * k), torch.randn(k, n))
        with FlopCounterMode(display=False) as counter:
            torch.mm(torch.randn(m, k), torch.randn(k, n))
    assert len(calls) == 1
    assert counter.get_total_flops() == 2 * m * k * n


def test_blocks_may_be_nested(calls: list[tuple[torch.Size, torch.Size]]) -> None:
    m, k, n = LARGE
    a, b = torch.randn(m, k), torch.randn(k, n)
    with onednn_products():
        with onednn_products():
            a @ b
        a @ b
    a @ b
    assert len(calls) == 2


def test_elsewhere_nothing_changes(monkeypatch: pytest.MonkeyPatch, calls: list[tuple[torch.Size, torch.Size]]) -> None:
    monkeypatch.setattr(onednn, "pays", lambda: False)
    with onednn_products():
        torch.mm(torch.randn(128, 96), torch.randn(96, 160))
    assert not calls


@pytest.mark.parametrize(
    ("capability", "cpu", "expected"),
    [("AVX512", "AMD EPYC 9B45", True), ("AVX2", "AMD EPYC 7B13", False), ("AVX512", "Intel(R) Xeon(R)", False)],
)
def test_it_pays_where_mkl_leaves_avx512_unused(capability: str, cpu: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(onednn, "cpu_name", lambda: cpu)
    assert onednn.pays() is expected


def test_rows_from_which_every_factor_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = torch.empty(512, 4096), torch.empty(512, 512)
    monkeypatch.setattr(onednn, "pays", lambda: True)
    assert least_rows(wide) == 0.5
    assert least_rows(wide, narrow) == 4.0
    assert least_rows(wide, narrow.double()) == least_rows(wide.to("meta")) == math.inf
    monkeypatch.setattr(onednn, "pays", lambda: False)
    assert least_rows(wide) == math.inf


def test_a_sum_with_a_product_is_that_of_float64() -> None:
    added, a, b = torch.randn(30, 50), torch.randn(30, 40), torch.randn(40, 50)
    expected = torch.addmm(added.double(), a.double(), b.double())
    torch.testing.assert_close(sum_of(added, a, b).double(), expected, rtol=1e-5, atol=1e-5)


def test_the_same_factors_give_the_same_bits_wherever_they_lie() -> None:
    """A resumed run has its tensors elsewhere in memory."""
    m, k, n = 300, 112, 450
    a, b = torch.randn(m, k), torch.randn(k, n)
    expected = product(a, b)
    for offset in (1, 3, 8):
        moved = torch.empty(m * k + offset)[offset:].view(m, k).copy_(a)
        assert torch.equal(product(moved, b), expected)
        assert torch.equal(product(a, torch.empty(k * n + offset)[offset:].view(k, n).copy_(b)), expected)
