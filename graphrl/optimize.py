"""Planning of a model in one call, `optimize`, and of many graphs in one call, `optimize_batch`."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from graphrl.costs.bounds import lower_bound
from graphrl.costs.fusion.exact import fused_graph
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import Objective, Problem, Transfer
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.sets import Model, model_graph
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, ReadLimits
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.process import count_cores
from graphrl.solvers.base import Budget, Interrupted, Progress, Task
from graphrl.solvers.fusion.rules import JOINT, check_rule, fuse_by, plan_jointly

if TYPE_CHECKING:
    from graphrl.graphs.padding import Sizes

DEFAULT_SECONDS = 10.0
MAX_BATCH = 128  # graphs of a batch; larger ones are no faster
MAX_PAIRS = 2**26  # pairs of ops in a batch: some policies have bytes of each
MAX_SEED = 2**32 - 1  # largest seed of a jax key without 64-bit integers


def optimize(
    model: Model,
    *args: Any,
    objective: Objective = "peak_memory",
    devices: int | None = None,
    transfer: Transfer = "rendezvous",
    latency: float = 0.0,
    bandwidth: float = math.inf,
    memory_limit: int | None = None,
    resident_weights: bool = False,
    cpus: int | None = None,
    method: str = "auto",
    evaluations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    fuse: str | None = None,
    chip: str | Chip = DEFAULT_CHIP,
    dims: Mapping[str, int] | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> Plan:
    """Finds the best plan of a method for a model within a budget.

    Args:
      model: a graph, the path of a file that `read_graph` knows (graph JSON, ONNX, compiled HLO, CostGraphDef, STG), a
        JAX function, or a name: a program of the model zoo, as in "zoo:efficientnetb0/training/b8/hlo", or a set of one
        generated graph, as in "layered:200" (see `datasets.sets.load_graph`).
      *args: only for a function: its arguments, arrays or `jax.ShapeDtypeStruct`s; it is traced, not run.
      objective: "peak_memory" (bytes of the fullest device), "makespan" (seconds) or "max_load" (the largest load of a
        device in pipelined execution, seconds a sample).
      devices: number of devices, by default 1; for "max_load" by default those of the model's file.
      transfer: "rendezvous" (a transfer occupies both devices), "link" (the sender's link) or "free" (no device).
      latency: seconds that a transfer takes in addition to its bytes.
      bandwidth: bytes per second of a transfer, may be infinite.
      memory_limit: bytes a device may hold, or None; not with "peak_memory". If no plan within it is found, the result
        is the one that exceeds it least: see `Plan.excess`. For "max_load" None is the limit of the model's file.
      resident_weights: whether weights count on the devices of their ops for the whole run.
      cpus: number of devices, the last ones, that are CPUs; only with "max_load". By default that of the model's file,
        or 0 if `devices` is given.
      method: one of `methods.METHODS`, perhaps with options as in "approximate-dp:width=1000"; "auto" runs several
        methods in sequence, chosen for the time.
      evaluations: maximum number of solutions to decode and cost. With neither limit the budget is 10 seconds; with
        both, the first that is reached counts. Results repeat exactly only under `evaluations`.
      seconds: maximum wall-clock time, including compilation, up to the length of the method's chunks of work; "auto"
        and "regal+" add the first list schedule and the bound.
      seed: 0 to 2^32 - 1.
      progress: called from time to time with the best plan so far (`solvers/base.py`).
      fuse: None plans single ops. A rule of `solvers.fusion.rules.RULES`, such as "flips", inlines ops into the kernels
        that read them, and the result is a plan of kernels. Their run times are the roofline's on `chip`, not the
        graph's. The time of the rule is added to `seconds`. "joint" chooses among fusions by their plans, if memory is
        limited or is the objective (`solvers.fusion.rules`).
      chip: for run times of ONNX and HLO files and functions: a name in `roofline.CHIPS` or a `Chip`.
      dims: sizes of dimensions that an ONNX file leaves open: see `read_graph`.
      limits: of time and memory, for reading a file: see `read_graph`.

    Returns:
      The plan, with exact costs and a lower bound.

    Raises:
      GraphrlError: the model or an option is invalid; one line that names the fault.
      Interrupted: Ctrl-C; a KeyboardInterrupt whose `plan` is the best so far.
    """
    options = {
        "objective": objective,
        "devices": devices,
        "transfer": transfer,
        "latency": latency,
        "bandwidth": bandwidth,
        "memory_limit": memory_limit,
        "resident_weights": resident_weights,
        "cpus": cpus,
    }
    if any(isinstance(argument, Problem) for argument in args):
        raise ProblemError('a problem is given by keywords: optimize(model, objective="makespan", devices=2)')
    Problem.on(None, **options)  # invalid options raise before the model is read
    budget = make_budget(evaluations, seconds)
    check_seed(seed)
    if fuse is not None:
        check_rule(fuse)
        if objective == "max_load":
            raise ProblemError("fuse requires the objective peak_memory or makespan: kernels have no run times on CPUs")
    solver = find_solver(method)
    graph = model_graph(model, *args, chip=chip, dims=dims, limits=limits)
    problem = Problem.on(graph.machine, **options)
    try:
        if fuse == JOINT:
            plan = plan_jointly(fusion_problem(graph, chip), problem, budget, solver, seed, progress)
            return _with_bound(plan, graph)
        if fuse is not None:
            graph = fused_graph(fuse_by(fuse, fusion_problem(graph, chip)))
        return _with_bound(solver(Task(graph, problem, budget, seed, progress)), graph)
    except Interrupted as stop:
        raise Interrupted(_with_bound(stop.plan, graph)) from None


def optimize_batch(
    models: Sequence[Model],
    *,
    objective: Objective = "peak_memory",
    devices: int | None = None,
    transfer: Transfer = "rendezvous",
    latency: float = 0.0,
    bandwidth: float = math.inf,
    memory_limit: int | None = None,
    resident_weights: bool = False,
    cpus: int | None = None,
    method: str = "list",
    evaluations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Plan]:
    """Finds a plan for each of many graphs.

    The methods "list", "regal-once" and "topoformer" plan many graphs in a batch. Policies see graphs of
    similar sizes as padded batches, of which each size compiles one program. Any other method plans one graph after
    another with the same budget.

    Args:
      models: graphs, or paths and names of one graph each, as of `optimize`.
      objective, devices, transfer, latency, bandwidth, memory_limit, resident_weights, cpus: see `optimize`.
      method: see `optimize`.
      evaluations, seconds: budget for each graph. Methods that plan batches ignore `seconds`; others need one.
      seed: 0 to 2^32 - 1, the same for all graphs.
      progress: called with the number of graphs that are planned so far.

    Returns:
      The plans in the order of the models, with exact costs, but without bounds, which may take longer than the plans
      (`Plan.attach` adds one). The seconds of a plan are its share of its batch.

    Raises:
      GraphrlError: a model or an option is invalid; one line that names the fault.
      Interrupted: Ctrl-C; a KeyboardInterrupt whose `plan` is the list of plans so far, None for graphs without one.
    """
    options: dict[str, Any] = {
        "objective": objective,
        "devices": devices,
        "transfer": transfer,
        "latency": latency,
        "bandwidth": bandwidth,
        "memory_limit": memory_limit,
        "resident_weights": resident_weights,
        "cpus": cpus,
    }
    Problem.on(None, **options)
    budget = make_budget(evaluations, seconds)
    check_seed(seed)
    solver = find_solver(method)
    if solver.batch is None and evaluations is None and seconds is None:
        raise ProblemError(
            f"method {solver.name!r} plans one graph after another: give evaluations or seconds for each of them"
        )
    graphs = [model_graph(model) for model in models]
    problems = [Problem.on(graph.machine, **options) for graph in graphs]

    def solve(batch: _Batch) -> list[Plan]:
        tasks = [Task(graphs[i], problems[i], budget, seed, sizes=batch.sizes) for i in batch.members]
        return solver.plan_batch(tasks) if solver.batch is not None else [solver(task) for task in tasks]

    plans: list[Plan | None] = [None] * len(graphs)
    batches = _batches(graphs, problems, padded=solver.digest is not None, most=MAX_BATCH if solver.batch else 1)
    # two threads make 1,000 list schedules in 0.93 s instead of 1.17; a policy's plans take the same time
    threads = count_cores() if solver.batch else 1
    with ThreadPoolExecutor(threads) as pool:
        # one alone first, since compiling is not parallel
        results = itertools.chain(map(solve, batches[:1]), pool.map(solve, batches[1:]))
        try:
            for batch, answers in zip(batches, results, strict=True):
                for i, plan in zip(batch.members, answers, strict=True):
                    plans[i] = plan
                if progress is not None:
                    progress(sum(plan is not None for plan in plans))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise Interrupted(plans) from None
    return plans  # type: ignore[return-value]  # none is missing


class _Batch(NamedTuple):
    """Graphs that a method plans in one call."""

    members: list[int]  # their indices among all graphs
    sizes: "Sizes | None"  # None without padding


def _batches(
    graphs: Sequence[ComputationGraph], problems: Sequence[Problem], *, padded: bool, most: int
) -> list[_Batch]:
    """Splits graphs into batches of one problem and, if `padded`, shared sizes; at most `most` in one."""
    sizes: Sequence[Sizes | None] = [None] * len(graphs)
    if padded:
        from graphrl.graphs.padding import batch_sizes  # imports jax, which takes a second

        sizes = batch_sizes(graphs)
    groups: dict[tuple[Problem, Sizes | None], list[int]] = {}
    for i, key in enumerate(zip(problems, sizes, strict=True)):
        groups.setdefault(key, []).append(i)
    batches = []
    for (_, to), members in groups.items():
        count = most if to is None else max(1, min(most, MAX_PAIRS // to.ops**2))
        batches += [_Batch(members[i : i + count], to) for i in range(0, len(members), count)]
    return batches


def make_budget(evaluations: int | None, seconds: float | None) -> Budget:
    """Builds a budget from the two limits; 10 seconds if neither is given.

    Raises:
      ProblemError: a limit is out of range.
    """
    return Budget(evaluations, DEFAULT_SECONDS if evaluations is None and seconds is None else seconds)


def check_seed(seed: int) -> None:
    """Raises ProblemError if the seed is not an integer from 0 to 2^32 - 1."""
    if type(seed) is not int or not 0 <= seed <= MAX_SEED:
        raise ProblemError(f"seed is {seed!r}: must be an integer from 0 to 2^32 - 1")


def _with_bound(plan: Plan, graph: ComputationGraph) -> Plan:
    if plan.bound is not None:
        return plan
    planned = graph if plan.inlining is None else plan.inlining.kernels(graph)
    return dataclasses.replace(plan, bound=lower_bound(planned, plan.problem, plan.decisions(planned)[1]))
