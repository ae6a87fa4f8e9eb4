"""REGAL as an agent of the training loop, and as methods: a trained network proposes distributions, BRKGA searches.

- "regal" is the paper's method.
- "idrs" only samples from the proposals: the paper's instance-dependent random search.
- "regal-once" does not search: its plans are the policy's choices (`once.py`).
- "regal+" is `auto` with the proposals.
"""

from collections.abc import Sequence
from typing import Any

from graphrl.agents.regal.instances import make_instances
from graphrl.agents.regal.learner import learner
from graphrl.agents.regal.network import Policy
from graphrl.costs.host.lowering import costs_of_lanes
from graphrl.errors import ProblemError
from graphrl.plan import Plan
from graphrl.solvers import auto
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.chromosomes.brkga import Parameters
from graphrl.solvers.chromosomes.brkga_solver import evolve
from graphrl.solvers.portfolio import Stage
from graphrl.solvers.rules.plan_builder import prepare
from graphrl.solvers.solver import solver
from graphrl.training.agent import Agent

AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: learner(config),
    batch=make_instances,
    methods=lambda config: ("regal", "idrs", "regal-once"),
    opponents=("brkga", "brkga-tuned", "list"),
    calls=(costs_of_lanes,),
)

SEARCH_SHARE = 0.3  # share of the budget of "regal+", as for `brkga+` in `auto`
_ONLY_MUTANTS = Parameters(population=81, elites=1, mutants=80)  # every offspring is drawn from the proposals


@solver("regal", "REGAL: brkga with the proposals of a trained policy", digest=Policy.digest_of)
def solve(task: Task, *, checkpoint: str = "", starts: Sequence[PlacedOrder] = ()) -> Plan:
    """Runs BRKGA with the policy's proposals for the graph.

    Args:
      checkpoint: a checkpoint of `graphrl train regal`, or a file of `Policy.save`; by default the policy that the
        package ships for the objective (and for `link` transfers, where it ships one).
      starts: plans to include in the first population.

    Raises:
      GraphrlError: the checkpoint cannot be read, or is for another number of devices.
    """
    return _search(task, checkpoint, starts=starts)


@solver("idrs", "REGAL's random search: the best of samples from the proposals of regal", digest=Policy.digest_of)
def solve_samples(task: Task, *, checkpoint: str = "") -> Plan:
    """Draws all solutions from the proposals, without crossover. Args and errors: as `solve`."""
    return _search(task, checkpoint, _ONLY_MUTANTS)


@solver("regal+", "regal, then what auto does, from the best plan", digest=Policy.digest_of, prepare=prepare)
def solve_portfolio(task: Task, *, checkpoint: str = "") -> Plan:
    """Runs "regal" for three tenths of the budget, with the initial plans of `auto` (list scheduling among them) in its
    first population; `auto`'s searches then continue from the best plan.

    Args and errors: as `solve`.
    """
    find_policy(task, checkpoint)  # raises here, since a portfolio skips methods that do not support a problem

    def proposing(plans: list[Plan]) -> dict[str, Any]:
        return {"checkpoint": checkpoint, "starts": [plan.decisions(task.graph) for plan in plans]}

    others = auto.stages(task.graph, task.problem, task.budget)
    search = Stage(solve, SEARCH_SHARE, options=proposing)
    return auto.initial_portfolio(task).run([search, *others])


def find_policy(task: Task, checkpoint: str) -> Policy:
    """Loads the policy of a checkpoint, or the shipped one, and checks that it fits the task.

    Raises:
      GraphrlError: the policy cannot be read, or is for another number of devices.
    """
    policy, devices = Policy.load_or_default(task.problem, checkpoint), task.problem.devices
    if policy.config.placement == "independent" and policy.config.problem.devices != devices:
        raise ProblemError(
            f"method {task.method!r} has a policy for {policy.config.problem.devices} devices, not for {devices}"
        )
    return policy


def _search(
    task: Task,
    checkpoint: str,
    parameters: Parameters | None = None,
    starts: Sequence[PlacedOrder] = (),
) -> Plan:
    policy = find_policy(task, checkpoint)
    return evolve(
        task,
        parameters or policy.config.parameters,
        starts,
        lambda sizes: policy.propose(task.graph, sizes, task.seed, task.problem),
    )
