"""Aggregates over seeds against hand-computed figures, and curves of runs of different lengths."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from graphrl.compare.curves import LoggedRun, curves_figure, curves_of, interval


def run_of(values: dict[int, float], seconds_each: float = 1.0) -> LoggedRun:
    """A run with a metric `loss` at these updates."""
    lines = [{"step": step, "seconds": seconds_each * step, "loss": value} for step, value in values.items()]
    return LoggedRun(Path("run"), {}, "", "", lines)


def test_the_iqm_is_the_mean_of_the_middle_half() -> None:
    assert interval(np.array([1.0, 2, 3, 4, 10])).value == 4
    assert interval(np.array([10.0, 1, 2, 3, 4]), "iqm").value == 3  # of 2, 3, 4
    assert interval(np.array([0.0, 1, 2, 3, 4, 5, 6, 100]), "iqm").value == 3.5  # of 2, 3, 4, 5


def test_intervals_are_those_of_all_resamples() -> None:
    """Three runs have 27 equally probable resamples."""
    values = np.array([0.0, 3.0, 12.0])
    means = sorted(np.mean(sample) for sample in itertools.product(values, repeat=3))
    value, low, high = interval(values)
    # 1/27 of the resamples has the mean 0, another 1/27 the mean 12: both ends are among the outermost 2.5%
    np.testing.assert_array_equal([value, low, high], [5, means[0], means[-1]])
    assert (means[0], means[-1]) == (0, 12)
    five = np.array([1.0, 2, 3, 4, 10])
    means = [np.mean(sample) for sample in itertools.product(five, repeat=5)]
    exact = np.quantile(means, [0.025, 0.975])
    np.testing.assert_allclose(interval(five)[1:], exact, atol=0.25)


def test_one_run_has_no_interval_and_equal_runs_an_empty_one() -> None:
    np.testing.assert_array_equal(interval(np.array([3.0])), [3, 3, 3])
    np.testing.assert_array_equal(interval(np.ones((4, 2))), np.ones((3, 2)))


def test_a_curve_is_over_the_runs_that_have_come_so_far() -> None:
    groups = {"a": [run_of({1: 1.0, 2: 3.0, 3: 5.0}), run_of({1: 3.0, 2: 5.0})]}
    x, y = curves_of(groups, "loss")["a"]
    np.testing.assert_array_equal(x, [1, 2, 3])
    np.testing.assert_array_equal(y.value, [2, 4, 5])
    np.testing.assert_array_equal(y.low, [1, 3, 5])
    np.testing.assert_array_equal(y.high, [3, 5, 5])


def test_values_at_different_times_are_interpolated() -> None:
    groups = {"a": [run_of({0: 0.0, 2: 2.0}, 1.0), run_of({0: 0.0, 2: 2.0}, 2.0)]}
    x, y = curves_of(groups, "loss", x="seconds")["a"]
    np.testing.assert_array_equal(x, [0, 2, 4])
    np.testing.assert_allclose(y.value, [0, 1.5, 2])


def test_long_curves_are_averaged() -> None:
    long = run_of({step: float(step % 2) for step in range(1, 8001)})
    x, y = curves_of({"a": [long]}, "loss")["a"]
    assert len(x) == 400
    np.testing.assert_allclose(y.value, 0.5, atol=0.05)


@pytest.mark.parametrize("aggregate", ["mean", "iqm"])
def test_a_picture_has_a_line_a_group_and_bands_for_seeds(aggregate: str) -> None:
    groups = {"seeds": [run_of({1: 1.0, 2: 2.0}), run_of({1: 2.0, 2: 3.0})], "alone": [run_of({1: 1.0, 2: 1.5})]}
    curves = curves_of(groups, "loss", aggregate=aggregate)  # type: ignore[arg-type]
    (axes,) = curves_figure(curves, groups, "loss", aggregate=aggregate).axes  # type: ignore[arg-type]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["seeds (2 seeds)", "alone"]
    assert (len(axes.lines), len(axes.collections)) == (2, 1)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("updates", "loss")
