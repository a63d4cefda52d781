"""Frontier metrics against hand arithmetic and the orders of magnitude of the paper."""

from __future__ import annotations

import math

import pytest

from components.evaluation.frontier import (
    OperatingPoint,
    ThroughputRange,
    accuracy_points,
    analytic_throughput,
    aulb,
    aulb_clipped,
    delta_full,
    loda,
    loda_sensitivity,
    off_exit_gaps,
    perplexity_points,
    throughput_range,
)

NOT_FINITE = [None, math.inf, -math.inf, math.nan]


def test_aulb_is_the_trapezoid_over_depth() -> None:
    assert aulb([4.0, 3.0, 1.0]) == pytest.approx((3.5 + 2.0) / 2)


def test_aulb_of_a_smooth_curve_from_ppl_81_to_15_has_the_order_of_the_paper() -> None:
    # Geometric decay of NLL towards its floor, as a cascade shows; the paper's tlm-uniform has 3.28.
    floor = math.log(14.5)
    curve = [floor + (math.log(81) - floor) * 0.82**k for k in range(20)]
    assert math.exp(curve[-1]) == pytest.approx(15, abs=0.5)
    area = aulb(curve)
    assert area is not None
    assert abs(area - 3.3) < 0.3


def test_aulb_of_a_collapse_between_exits_has_the_order_of_the_paper() -> None:
    # Paper, MLMS: k=1 438,883; k=5 1,412; exits 21.9, 17.5, 15.0; AULB 5.73-5.90.
    corners = {1: 438_883, 5: 1_412, 10: 1_000, 11: 21.9, 15: 400, 16: 17.5, 19: 300, 20: 15.0}
    depths = sorted(corners)
    curve = []
    for k in range(1, 21):
        low, high = max(d for d in depths if d <= k), min(d for d in depths if d >= k)
        share = 0.0 if low == high else (k - low) / (high - low)
        curve.append((1 - share) * math.log(corners[low]) + share * math.log(corners[high]))
    area = aulb(curve)
    assert area is not None
    assert 5.0 < area < 7.0


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_aulb_is_null_and_its_clipped_form_counts_chance_when_a_depth_is_not_finite(bad: float | None) -> None:
    assert aulb([bad, 2.0, 2.0]) is None
    assert aulb_clipped([bad, 2.0, 2.0], 100) == pytest.approx((0.5 * (math.log(100) + 2.0) + 2.0) / 2)


def test_clipping_caps_a_depth_worse_than_chance() -> None:
    assert aulb([1000.0, 1.0]) == 500.5
    assert aulb_clipped([1000.0, 1.0], 100) == pytest.approx((math.log(100) + 1) / 2)


def test_a_single_depth_has_no_area() -> None:
    assert aulb([2.0]) is None
    assert aulb_clipped([2.0], 100) is None


def test_off_exit_gap_is_measured_from_the_line_between_exits() -> None:
    gaps = off_exit_gaps([9.0, 4.0, 5.0, 3.5, 2.0], exits=(2, 5))
    assert gaps == pytest.approx([5.0, 0.0, 5.0 - (4.0 - 2 / 3), 3.5 - (4.0 - 4 / 3), 0.0])


def test_off_exit_gap_is_null_where_a_number_is_missing() -> None:
    assert off_exit_gaps([None, 4.0, 3.0, 2.0], exits=(2, 4)) == [None, 0.0, 0.0, 0.0]
    assert off_exit_gaps([5.0, None, 3.0, 2.0], exits=(2, 4)) == [None, None, None, 0.0]


@pytest.mark.parametrize("exits", [(), (2,), (2, 2, 3), (0, 3), (3, 2)])
def test_off_exit_gap_refuses_impossible_exits(exits: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="exits"):
        off_exit_gaps([3.0, 2.0, 1.0], exits)


def test_delta_full_is_a_ratio_of_perplexities() -> None:
    delta = delta_full(math.log(14.99), math.log(13.98))
    assert delta == pytest.approx(14.99 / 13.98 - 1)
    assert delta_full(1000.0, 2.0) is None
    for bad in NOT_FINITE:
        assert delta_full(bad, 2.0) is None


def test_loda_linear_by_hand() -> None:
    # Quality 0.8 up to throughput 1, 0.5 up to 2, nothing to 4: (0.8 + 0.5) / 4.
    points = [OperatingPoint(1.0, 0.8, True), OperatingPoint(2.0, 0.5, True), OperatingPoint(4.0, 0.9, False)]
    assert loda(points, ThroughputRange(1.0, 4.0), "linear") == pytest.approx(100 * 1.3 / 4)


def test_loda_log_by_hand() -> None:
    points = [OperatingPoint(1.0, 0.8, True), OperatingPoint(2.0, 0.5, True), OperatingPoint(4.0, 0.9, False)]
    assert loda(points, ThroughputRange(1.0, 4.0), "log") == pytest.approx(100 * 0.5 / 2)


def test_a_faster_and_better_point_hides_a_slower_one() -> None:
    slow_and_bad = [OperatingPoint(1.0, 0.2, True), OperatingPoint(2.0, 0.5, True)]
    assert loda(slow_and_bad, ThroughputRange(1.0, 2.0), "linear") == pytest.approx(50.0)


def test_loda_without_a_valid_point_is_zero_on_both_axes() -> None:
    points = [OperatingPoint(1.0, 0.4, False)]
    assert loda(points, throughput_range(points), "linear") == 0.0
    assert loda(points, throughput_range(points), "log") == 0.0


def test_loda_of_a_single_depth_is_its_quality() -> None:
    points = [OperatingPoint(3.0, 0.4, True)]
    assert loda(points, throughput_range(points), "linear") == pytest.approx(40.0)
    assert loda(points, throughput_range(points), "log") == pytest.approx(40.0)


def test_perplexity_points_apply_the_margin_and_drop_what_is_not_finite() -> None:
    points = perplexity_points([math.log(100) - 0.5, 2.0, *NOT_FINITE], [1.0] * 6, 100, margin_nats=1.0)
    assert [point.is_valid for point in points] == [False, True, False, False, False, False]
    assert points[1].quality == pytest.approx(1 - 2.0 / math.log(100))


def test_accuracy_points_need_more_than_one_standard_error_above_chance() -> None:
    points = accuracy_points([0.26, 0.30], [0.02, 0.02], 0.25, [2.0, 1.0])
    assert [point.is_valid for point in points] == [False, True]
    assert points[1].quality == 0.30


def test_sensitivity_covers_margins_and_axes_and_never_rises_with_the_margin() -> None:
    nll, throughputs = [4.0, 3.0, 2.0], [analytic_throughput(flops) for flops in (10, 20, 40)]
    shared = ThroughputRange(min(throughputs), max(throughputs))
    table = loda_sensitivity(nll, throughputs, 100, shared, (0.0, 1.0, 2.0))
    assert len(table) == 6
    for axis in ("linear", "log"):
        row = [table[axis, margin] for margin in (0.0, 1.0, 2.0)]  # type: ignore[index]
        assert row == sorted(row, reverse=True)
