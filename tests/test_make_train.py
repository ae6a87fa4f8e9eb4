"""scripts/train.py, which `make train` runs: its batched searches find what the solvers find."""

import runpy
from pathlib import Path

import pytest

from graphrl.compare.execute import Executor
from graphrl.compare.runs import make_runs
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.solvers.base import Budget
from graphrl.solvers.chromosomes.brkga import Parameters

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "train.py"


@pytest.mark.slow
def test_many_graphs_at_once_find_what_each_finds_alone() -> None:
    graphs = load_graphs(["regal-like:10x2", "regal-like:14x2"])
    runs = make_runs(graphs, Problem("makespan", 2), ["brkga"], [3], Budget(240), cores=1)
    together = runpy.run_path(str(SCRIPT))["search"](runs, Parameters(), None)
    for run, row in zip(runs[:1] + runs[-1:], together[:1] + together[-1:], strict=True):
        alone = Executor().execute(run)
        assert (row.value, row.bound, row.evaluations, row.key) == (
            alone.value,
            alone.bound,
            alone.evaluations,
            alone.key,
        )
