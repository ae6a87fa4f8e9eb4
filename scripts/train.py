"""Trains a small REGAL on synthetic graphs and compares it on graphs that it has not seen: `make train`.

The graphs are random ones as REGAL describes them, of 50 to 70 ops, for two devices with rendezvous transfers. The
table compares the trained policy (regal) with BRKGA without it (brkga), list scheduling and independent samples from
the policy's proposals (idrs), at equal evaluations; all values are those of `graphrl evaluate`, only that the graphs
are searched many at a time here. Table, rows and picture of the improvements go to out/train, beside the run. What was
interrupted goes on when it is started again.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.regal.policy import Policy
from graphrl.bench.machine import cores
from graphrl.cli import main as graphrl
from graphrl.compare.compiling import compile_clock
from graphrl.compare.execute import Executor, row_of
from graphrl.compare.pictures import histogram_figure
from graphrl.compare.report import print_tables
from graphrl.compare.runs import Row, Run, make_runs
from graphrl.compare.store import json_lines
from graphrl.costs.bounds import lower_bound
from graphrl.envs.proposal.instance import instances
from graphrl.files import write_atomically
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.plan import Plan
from graphrl.plan.plot import write_figure
from graphrl.solvers.base import Budget
from graphrl.solvers.chromosomes.batch import run_batch
from graphrl.solvers.chromosomes.beta import BetaTable
from graphrl.solvers.chromosomes.brkga import Parameters
from graphrl.solvers.chromosomes.warm_start import decisions

SETTINGS = (
    "data.train=regal-like:50x100@10000,regal-like:60x100@20000,regal-like:70x100@30000",
    "data.validation=regal-like:60x32@5000",
    "data.buckets=1",
    "training.steps=150",
    "training.validate_every=50",
    "training.checkpoint_every=50",
)
UNSEEN = ("regal-like:50x{}", "regal-like:60x{}@1000", "regal-like:70x{}@2000")
ONLY_SAMPLES = Parameters(population=81, elites=1, mutants=80)  # of idrs: every offspring is drawn from the proposals
GROUP = 16  # graphs that are searched together


def main() -> int:
    """Trains, compares and draws; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/train"), help="folder to write to (default: out/train)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `graphrl train`")
    parser.add_argument("--graphs", type=int, default=48, help="unseen graphs, a multiple of 3 (default: 48)")
    parser.add_argument("--evaluations", type=int, default=5_000, help="of each search (default: 5000)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.perf_counter()
    settings = [word for setting in (*SETTINGS, *args.set) for word in ("--set", setting)]
    run = args.out / "run"
    code = graphrl(["train", "regal", "--out", str(run), "--resume", "--seed", str(args.seed), *settings])
    if code:
        return code
    print(f"comparing on {args.graphs} unseen graphs", file=sys.stderr, flush=True)
    graphs = load_graphs([name.format(args.graphs // len(UNSEEN)) for name in UNSEEN])
    rows = compare(Policy.load(run), graphs, args.evaluations, args.seed)
    write_atomically(args.out / "rows.jsonl", lambda file: file.write(json_lines(rows)))
    write_figure(histogram_figure(rows, "brkga"), str(args.out / "improvements.png"))
    print_tables(rows)
    print(f"{time.perf_counter() - started:.0f} s in all. Written: {args.out}/improvements.png and rows.jsonl")
    return 0


def compare(policy: Policy, graphs: Sequence[ComputationGraph], evaluations: int, seed: int) -> list[Row]:
    """A row for every graph and method: regal, brkga, list and idrs."""
    searches = {"regal": (Parameters(), policy), "brkga": (Parameters(), None), "idrs": (ONLY_SAMPLES, policy)}
    graphs = sorted(graphs, key=lambda graph: len(graph.ops))
    runs = make_runs(graphs, policy.config.problem, [*searches, "list"], [seed], Budget(evaluations), cores=cores())
    rows = {run.key: Executor().execute(run) for run in runs if run.method == "list"}
    for method, (parameters, proposer) in searches.items():
        own = [run for run in runs if run.method == method]
        for begin in range(0, len(own), GROUP):
            rows |= {row.key: row for row in search(own[begin : begin + GROUP], parameters, proposer)}
    return [rows[run.key] for run in runs]


def search(runs: Sequence[Run], parameters: Parameters, policy: Policy | None) -> list[Row]:
    """BRKGA on the graphs of some runs at once: what each of them would find alone, as keys are those of the solver."""
    graphs, problem, budget = [run.graph for run in runs], runs[0].problem, runs[0].budget.evaluations or 1
    sizes = common_sizes(graphs)
    with compile_clock() as compiling:
        started = time.perf_counter()
        proposals = None if policy is None else stacked([policy.propose(graph, sizes) for graph in graphs])
        keys = jnp.stack([jax.random.key(run.seed) for run in runs])
        genes, _ = run_batch(keys, instances(graphs, sizes).graph, problem, parameters, budget, proposals)
        found = np.asarray(genes)
        seconds = (time.perf_counter() - started - compiling()) / len(runs)
    return [row(run, sizes, found[:, i], seconds, parameters) for i, run in enumerate(runs)]


def stacked(tables: Sequence[BetaTable]) -> BetaTable:
    """The proposals of several graphs (choices `[k, 1]` each) as those of a batch (choices `[k, g]`)."""
    return tables[0]._replace(choice=jnp.concatenate([table.choice for table in tables], axis=1))


def row(run: Run, sizes: Sizes, genes: np.ndarray, seconds: float, parameters: Parameters) -> Row:
    """The row of a chromosome, with exact costs."""
    placement, order = decisions(run.graph, run.problem, sizes, genes)
    count = parameters.generations(run.budget.evaluations or 1) * parameters.offspring
    plan = Plan.from_order(
        run.graph, run.problem, placement, order, method=run.method, seconds=seconds, evaluations=count, seed=run.seed
    )
    return row_of(
        run,
        value=plan.value,
        bound=lower_bound(run.graph, run.problem),
        excess=plan.excess,
        makespan=plan.makespan,
        peak_memory=plan.peak_memory,
        seconds=seconds,
        evaluations=count,
        curve=((seconds, count, plan.value),),
    )


if __name__ == "__main__":
    sys.exit(main())
