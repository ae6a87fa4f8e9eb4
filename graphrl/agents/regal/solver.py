"""A trained policy as a `Solver`: the network proposes, BRKGA searches.

"regal" is the paper's; a policy with a hint (`RegalConfig.hint`) makes it search around a plan of list scheduling.
"regal+" is `auto` with proposals; "idrs" only samples from the proposals, which is the paper's instance-dependent
random search.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any

from graphrl.agents.regal.policy import Policy
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.plan import Plan
from graphrl.solvers.auto import candidates, stages
from graphrl.solvers.base import Budget, Decisions, Progress
from graphrl.solvers.chromosomes.beta import BetaTable
from graphrl.solvers.chromosomes.brkga import Parameters
from graphrl.solvers.chromosomes.brkga_solver import solve as brkga
from graphrl.solvers.portfolio import Portfolio, Stage

SEARCH_SHARE = 0.3  # of the budget of "regal+", as `brkga+` has in `auto`
_ONLY_MUTANTS = Parameters(population=81, elites=1, mutants=80)  # every offspring is drawn from the proposals


def solve(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    checkpoint: str = "",
    starts: Sequence[Decisions] = (),
    sizes: Sizes | None = None,
) -> Plan:
    """The `Solver` "regal": BRKGA with proposals that the policy makes for the graph.

    Args:
      graph, problem, budget, seed, progress: see `Solver`.
      checkpoint: of `graphrl train regal`, or a file of `Policy.save`; by default the policy that the package ships
        for the objective (and for `link` transfers, where it ships one).
      starts: (placement, order) of known plans, part of the first population.
      sizes: see `brkga_solver.solve`.

    Raises:
      GraphrlError: the checkpoint cannot be read, or is for another number of devices.
      Interrupted: on Ctrl-C, with the best plan so far.
    """
    return _solve("regal", graph, problem, budget, seed, progress, checkpoint, sizes, starts=starts)


def solve_warm(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    checkpoint: str = "",
    sizes: Sizes | None = None,
) -> Plan:
    """The `Solver` "regal+": `auto` with proposals. The plans that `auto` begins with, list scheduling among them, are
    in the first population of "regal", for 3 tenths of the budget; `auto`'s searches but `brkga+` go on from the best.

    Args and errors: as `solve`.
    """
    _policy("regal+", problem, checkpoint)  # a portfolio passes over methods that do not take a problem
    plain = candidates(graph, problem, budget)
    first = next(plain)
    bound = lower_bound(graph, problem, first[1] if problem.devices > 1 else None)
    portfolio = Portfolio("regal+", graph, problem, budget, seed, progress, bound, sizes)
    portfolio.add(itertools.chain([first], plain))

    def proposing(found: list[Decisions]) -> dict[str, Any]:
        return {"checkpoint": checkpoint, "starts": found}

    others = (stage for stage in stages(graph, problem, budget) if stage.method != "brkga+")
    return portfolio.run(itertools.chain([Stage("regal", SEARCH_SHARE, options=proposing)], others))


def solve_samples(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    checkpoint: str = "",
    sizes: Sizes | None = None,
) -> Plan:
    """The `Solver` "idrs": the best of independent samples from the proposals.

    Args and errors: as `solve`.
    """
    return _solve("idrs", graph, problem, budget, seed, progress, checkpoint, sizes, parameters=_ONLY_MUTANTS)


def digest(problem: Problem, *, checkpoint: str = "", **_: object) -> str:
    """Of the policy that the methods above play (`agents.digest`). Takes their options.

    Raises:
      GraphrlError: it cannot be read.
    """
    return _chosen(problem, checkpoint).digest


def _chosen(problem: Problem, checkpoint: str) -> Policy:
    return Policy.load(checkpoint) if checkpoint else Policy.default(problem)


def _policy(method: str, problem: Problem, checkpoint: str) -> Policy:
    """The policy to play.

    Raises:
      GraphrlError: it cannot be read, or is for another number of devices.
    """
    chosen = _chosen(problem, checkpoint)
    devices = chosen.config.problem.devices
    if problem.devices != devices:
        raise ProblemError(f"method {method!r} has a policy for {devices} devices: must not be {problem.devices}")
    return chosen


def _solve(
    method: str,
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None,
    checkpoint: str,
    sizes: Sizes | None,
    *,
    parameters: Parameters | None = None,
    starts: Sequence[Decisions] = (),
) -> Plan:
    started = time.perf_counter()
    chosen = _policy(method, problem, checkpoint)

    def proposals(sizes: Sizes) -> BetaTable:
        return chosen.propose(graph, sizes, seed, problem)

    return brkga(
        graph,
        problem,
        budget,
        seed,
        progress,
        parameters=chosen.config.parameters if parameters is None else parameters,
        warm_starts=starts,
        proposals=proposals,
        method=method,
        started=started,
        sizes=sizes,
    )
