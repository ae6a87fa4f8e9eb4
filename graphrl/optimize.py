"""Planning of a model in one call: `optimize`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

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
from graphrl.solvers.base import Budget, Interrupted, Progress, Task
from graphrl.solvers.fusion.rules import JOINT, check_rule, fuse_by, plan_jointly

DEFAULT_SECONDS = 10.0
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
