"""A comparison drops compiled programs before they take all memory maps that a process may have."""

import sys

import jax
import pytest

from graphrl.compare import runs
from graphrl.compare.runs import make_runs
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.process import maps_run_short
from graphrl.solvers.base import Budget


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_maps_run_short_above_a_share_of_the_limit() -> None:
    assert maps_run_short(share=1e-6)
    assert not maps_run_short(share=1.0)


@pytest.mark.parametrize("is_short", [False, True])
def test_programs_are_dropped_where_maps_run_short(is_short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[bool] = []
    monkeypatch.setattr(runs, "maps_run_short", lambda: is_short)
    monkeypatch.setattr(jax, "clear_caches", lambda: dropped.append(True))
    (run,) = make_runs(
        [regal_like(0, num_ops=10)], Problem("makespan", 2), ["list"], [0], Budget(evaluations=10), cores=1
    )
    row = runs.Executor().execute(run)
    assert row.value is not None
    assert row.error is None
    assert bool(dropped) == is_short
