"""A trained policy as a `Solver`: the network proposes, BRKGA searches.

"regal" is the paper's; "regal+" starts from known plans too; "idrs" only samples from the proposals, which is the
paper's instance-dependent random search.
"""

import time
from collections.abc import Sequence

from graphrl.agents.regal.policy import Policy
from graphrl.costs.problem import Problem
from graphrl.envs.proposal.instance import instance
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.plan import Plan
from graphrl.solvers.auto import candidates
from graphrl.solvers.base import Budget, Decisions, Progress
from graphrl.solvers.beta import BetaTable
from graphrl.solvers.brkga import Parameters
from graphrl.solvers.brkga_solver import solve as brkga

_ONLY_MUTANTS = Parameters(population=81, elites=1, mutants=80)  # every offspring is drawn from the proposals


def solve(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    checkpoint: str = "",
    sizes: Sizes | None = None,
) -> Plan:
    """The `Solver` "regal": BRKGA with proposals that the policy makes for the graph.

    Args:
      graph, problem, budget, seed, progress: see `Solver`.
      checkpoint: of `graphrl train regal`, or a file of `Policy.save`; by default the policy that the package ships
        for the objective.
      sizes: see `brkga_solver.solve`.

    Raises:
      GraphrlError: the checkpoint cannot be read, or is for another number of devices.
      Interrupted: on Ctrl-C, with the best plan so far.
    """
    return _solve("regal", graph, problem, budget, seed, progress, checkpoint, sizes)


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
    """The `Solver` "regal+": the plans that `auto` begins with, list scheduling among them, are in the first
    population.

    Args and errors: as `solve`.
    """
    started = time.perf_counter()
    starts = list(candidates(graph, problem, budget))
    return _solve("regal+", graph, problem, budget, seed, progress, checkpoint, sizes, starts=starts, started=started)


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
    return Policy.load(checkpoint) if checkpoint else Policy.default(problem.objective)


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
    started: float | None = None,
) -> Plan:
    started = time.perf_counter() if started is None else started
    chosen = _chosen(problem, checkpoint)
    devices = chosen.config.problem.devices
    if problem.devices != devices:
        raise ProblemError(f"method {method!r} has a policy for {devices} devices: must not be {problem.devices}")

    def proposals(sizes: Sizes) -> BetaTable:
        return chosen.propose(instance(graph, sizes), seed)

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
