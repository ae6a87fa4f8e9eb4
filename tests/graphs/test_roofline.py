"""The roofline model and the table of chips."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrl.errors import GraphrlError
from graphrl.graphs.graph import MAX_TOTAL_BYTES, MAX_WORK
from graphrl.graphs.roofline import CHIPS, DEFAULT_CHIP, MAX_LAUNCH, MIN_RATE, Chip, find_chip, runtime

TOY = Chip("toy", flops_per_second=10.0, bytes_per_second=2.0, launch_seconds=0.5)


def test_the_slower_of_compute_and_memory_counts_and_the_launch_is_added() -> None:
    assert runtime(20, 1, TOY) == 2.5
    assert runtime(20, 10, TOY) == 5.5
    assert runtime(0, 0, TOY) == 0.5


@given(flops=st.floats(0, 1e18), moved=st.floats(0, 1e15), name=st.sampled_from(sorted(CHIPS)))
def test_no_op_beats_either_roof_or_the_launch(flops: float, moved: float, name: str) -> None:
    figures = CHIPS[name]
    seconds = runtime(flops, moved, name)
    assert seconds >= max(flops / figures.flops_per_second, moved / figures.bytes_per_second, figures.launch_seconds)
    assert seconds <= runtime(2 * flops, 2 * moved, figures)


def test_every_chip_has_its_name_a_source_and_plausible_figures() -> None:
    assert DEFAULT_CHIP in CHIPS
    for name, figures in CHIPS.items():
        assert figures.name == name
        assert len(figures.source) > 10
        assert 1e12 < figures.flops_per_second < 1e16
        assert 1e11 < figures.bytes_per_second < 1e13
        # Every machine of the last decade needs 10 to 1000 operations a byte to reach its peak.
        assert 10 < figures.flops_per_second / figures.bytes_per_second < 1000


def test_chips_are_found_by_name_whatever_the_case_and_given_ones_pass() -> None:
    assert find_chip("H100 SXM") is CHIPS["h100-sxm"]
    assert find_chip("tpu_v5e") is CHIPS["tpu-v5e"]
    assert find_chip(TOY) is TOY
    assert runtime(1, 1) == runtime(1, 1, DEFAULT_CHIP)


@pytest.mark.parametrize(("name", "nearest"), [("", ""), ("h1000", "h100-sxm"), ("TPU-v5", "tpu-v5"), ("gpu", "")])
def test_unknown_chips_are_refused_with_the_nearest_ones(name: str, nearest: str) -> None:
    with pytest.raises(GraphrlError, match=rf"the nearest of {len(CHIPS)} known are .*{nearest}") as refusal:
        find_chip(name)
    assert sum(chip in str(refusal.value) for chip in CHIPS) < 7


def test_a_chip_that_is_neither_name_nor_chip_is_refused() -> None:
    with pytest.raises(GraphrlError, match="must be a Chip"):
        find_chip(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("figures", "fault"),
    [
        ((0, 1, 0), "flops_per_second is 0: must be a number from 1 to 1e30"),
        (("fast", 1, 0), "flops_per_second is 'fast': must be a number from 1 to 1e30"),
        ((1, -1, 0), "bytes_per_second is -1: must be a number from 1 to 1e30"),
        ((1, math.nan, 0), "bytes_per_second is nan: must be a number from 1 to 1e30"),
        ((1, 1, -1), "launch_seconds is -1: must be a number of seconds from 0 to 1e6"),
        ((1, 1, None), "launch_seconds is None: must be a number of seconds from 0 to 1e6"),
        ((1, 1, 0, "", 2**63), "product_workspace is 9223372036854775808: must be a number of bytes from 0 to 2^62"),
    ],
)
def test_chips_with_impossible_figures_are_refused(figures: tuple[Any, ...], fault: str) -> None:
    with pytest.raises(GraphrlError) as refusal:
        Chip("bad", *figures)
    assert str(refusal.value).startswith("chip 'bad': ")
    assert fault in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_no_work_of_a_graph_takes_longer_on_a_chip_than_an_op_of_a_graph_may() -> None:
    slowest = Chip("slowest", MIN_RATE, MIN_RATE, MAX_LAUNCH)
    assert runtime(MAX_WORK, MAX_TOTAL_BYTES, slowest) <= float(MAX_WORK)


@pytest.mark.parametrize(("flops", "moved"), [(-1, 0), (0, -1), (math.nan, 0), (0, math.inf)])
def test_impossible_work_is_refused(flops: float, moved: float) -> None:
    with pytest.raises(GraphrlError, match="finite and at least 0"):
        runtime(flops, moved, TOY)
