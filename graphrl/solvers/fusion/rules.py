"""Rules for what is inlined, by name: each makes a fusion of a problem, whatever the devices are."""

from collections.abc import Callable

import numpy as np

from graphrl.costs.fusion.exact import Fusion, fuse
from graphrl.costs.fusion.problem import FusionProblem
from graphrl.errors import ProblemError, near

MOVES = 2_000_000
LARGER = 8  # times as many bytes as it reads make an output worth computing again


def none(problem: FusionProblem) -> Fusion:
    """Every op is a kernel."""
    return fuse(problem, np.zeros(problem.num_ops, np.int64))


def single_reader(problem: FusionProblem) -> Fusion:
    """What one op reads is computed there: nothing is computed twice."""
    return fuse(problem, _read_once(problem).astype(np.int64))


def xla_like(problem: FusionProblem) -> Fusion:
    """The same, and what is 8 times as large as what it is computed from, such as a broadcast."""
    taken = np.append(0, np.cumsum(problem.tensor_bytes[problem.read_tensor]))[problem.read_start]
    grows = problem.output_bytes >= LARGER * np.diff(taken)
    return fuse(problem, (_read_once(problem) | grows).astype(np.int64))


def everything(problem: FusionProblem) -> Fusion:
    """All that is legal."""
    return fuse(problem, np.ones(problem.num_ops, np.int64))


def flips(problem: FusionProblem) -> Fusion:
    """Inlines one op or takes it out while that shortens the sum of the kernels' times; the best from two beginnings,
    the rule like XLA's and all that is legal.
    """
    from graphrl.solvers.fusion.flips import descended  # numba

    return min((descended(begin(problem)) for begin in (xla_like, everything)), key=lambda fusion: fusion.seconds)


def anneal(problem: FusionProblem) -> Fusion:
    """Simulated annealing on that sum from what `flips` ends at, 2 million flips."""
    from graphrl.solvers.fusion.flips import annealed  # numba

    return annealed(flips(problem), MOVES)


RULES: dict[str, Callable[[FusionProblem], Fusion]] = {
    "none": none,
    "single": single_reader,
    "xla": xla_like,
    "all": everything,
    "flips": flips,
    "anneal": anneal,
}
DEFAULT_RULE = "flips"
JOINT = "joint"  # no rule of a problem alone: `joint.py`


def fuse_by(rule: str, problem: FusionProblem) -> Fusion:
    """The fusion that a rule makes.

    Raises:
      ProblemError: no rule has this name; the message lists them.
    """
    check_rule(rule)
    return RULES[rule](problem)


def check_rule(rule: str) -> None:
    """Raises ProblemError if no rule has this name, nor is it `JOINT`; the message lists them."""
    if rule not in (*RULES, JOINT):
        raise ProblemError(f"unknown fusion rule {rule!r}: {near(rule, (*RULES, JOINT))}")


def _read_once(problem: FusionProblem) -> np.ndarray:
    """Whether one op alone reads each op's outputs: `[n]` bool."""
    a = problem.graph.arrays
    pairs = np.unique(a.producer[a.use_tensor].astype(np.int64) * problem.num_ops + a.use_op)
    return np.bincount(pairs // problem.num_ops, minlength=problem.num_ops) == 1
