"""Method "cp-sat" on memory maps: CP-SAT from the compiler's map, with a proof if it finishes.

Measured on the default chip with two cores: annealing alone has ResNet-50 at 285 us after a second and stays there, and
CP-SAT from its map proves 283.4 us after about 7 s; BERT-base has 1,736 us and, after a minute of CP-SAT, 1,731.
"""

from typing import NamedTuple

import numpy as np

from graphrl.costs.maps.problem import MapProblem
from graphrl.errors import ProblemError
from graphrl.plan.memory_map import MemoryMap
from graphrl.process import count_cores
from graphrl.solvers.base import MAX_EVALUATIONS
from graphrl.solvers.exact.engine import Expression, Limits, Literal, Model, minimise
from graphrl.solvers.maps.task import MapTask, map_solver

DEFAULT_SECONDS = 60.0  # if the budget has evaluations alone
QUANTA = 10_000_000  # time quanta in the latency of the best known map: the resolution of the proof
MAX_STEPS = 3_000
MAX_PAGES = 2**50  # limit for all weights and outputs: integers have 64 bits; above it a unit is several pages


@map_solver("cp-sat", "OR-Tools' CP-SAT from the compiler's map: search and proof")
def solve(task: MapTask, *, workers: int = 0, gap: float = 1e-5) -> MemoryMap:
    """Searches and proves maps by CP-SAT. It ends when the best map is proved optimal, or at the budget's seconds (60
    if it has evaluations alone). An evaluation is the compiler's map, or a better one that CP-SAT finds.
    `MemoryMap.bound` is the proved bound.

    Args:
      workers: number of CP-SAT's threads, 0 for one per core.
      gap: relative gap; a map within it of the bound counts as proved.

    Raises:
      ProblemError: ortools is missing, an option is out of range, or the graph has more than 3,000 ops.
    """
    if type(workers) is not int or not 0 <= workers <= 1024:
        raise ProblemError(f"workers is {workers!r}: must be an integer from 0 (one a core) to 1024")
    if not 0 <= gap < 1:
        raise ProblemError(f"gap is {gap!r}: must be from 0 to below 1")
    if task.problem.steps > MAX_STEPS:
        raise ProblemError(f"method 'cp-sat' takes graphs of up to {MAX_STEPS} ops: this one has {task.problem.steps}")
    task.evaluate(task.fastest[None])
    prove(task, workers, gap)
    return task.best_map()


def prove(task: MapTask, workers: int = 0, gap: float = 1e-5) -> None:
    """Searches from the best map of a task, within its budget, and sets its bound to the proved one."""
    if task.left(task.evaluations) is None or task.row is None or task.latency <= 0:
        return
    quantum = task.latency / QUANTA
    model = _model(task.problem, task.row, quantum)
    left = task.left(task.evaluations)  # building the model of thousands of ops takes seconds
    if left is None:
        return
    seconds = DEFAULT_SECONDS if left.seconds is None else left.seconds
    evaluations = left.evaluations or MAX_EVALUATIONS
    limits = Limits(seconds, evaluations, task.seed, workers or count_cores(), gap)

    def take(values: list[int]) -> None:
        task.evaluate(np.array(values).reshape(-1, task.problem.memories).argmax(1)[None])

    def tick() -> bool:
        task.report(task.evaluations, task.latency, force=True)
        return False

    proved = minimise(model.model, model.objective, model.variables, limits, take, tick)
    if proved:  # a bound of 0 has no value
        task.bound = min(task.latency, proved * quantum)


class _Built(NamedTuple):
    model: Model
    objective: Expression
    variables: list[Literal]  # [2n * M], True if an entry of a map's row is a memory


def _model(problem: MapProblem, row: np.ndarray, quantum: float) -> _Built:
    """Builds the model; its hint is the valid map `row`. Seconds are rounded down to quanta, so that its bound is a
    bound of the latency. They are clipped to twice the hint's latency, since no better map has a longer step, and
    integers have 64 bits.
    """
    model, n, m = Model(), problem.steps, problem.memories
    choice = [[model.boolean(bool(row[place] == memory)) for memory in range(m)] for place in range(2 * n)]
    for of_place in choice:
        model.cp.add_exactly_one(of_place)
    weights, outputs = choice[:n], choice[n:]
    _add_capacities(model, problem, weights, outputs, row)
    reads = np.split(np.arange(len(problem.read_step)), np.searchsorted(problem.read_step, np.arange(1, n)))
    floor = (np.array([problem.compute, problem.input_seconds]) / quantum).astype(np.int64)
    moved = problem.weight_seconds, problem.output_seconds, problem.read_seconds
    *in_quanta, reading = (np.minimum(seconds / quantum, 2 * QUANTA).astype(np.int64) for seconds in moved)
    times = []
    for step in range(n):
        busy = [int(floor[1, step])] + [0] * (m - 1)
        known = busy.copy()
        for memory in range(m):
            terms = [(weights[step], in_quanta[0][step]), (outputs[step], in_quanta[1][step])]
            terms += [(outputs[problem.read_source[e]], reading[e]) for e in reads[step]]
            for literals, seconds in terms:
                busy[memory] += int(seconds[memory]) * literals[memory]
                known[memory] += int(seconds[memory]) * model.holds(literals[memory])
        least, most = int(floor[0, step]), max(int(floor[0, step]), *known)
        times.append(model.integer(least, _most(problem, step, reads[step], quantum), most))
        for memory in range(m):
            model.cp.add(times[-1] >= busy[memory])
    launches = int(n * problem.chip.launch / quantum)
    return _Built(model, sum(times) + launches, [literal for of_place in choice for literal in of_place])


def _most(problem: MapProblem, step: int, reads: np.ndarray, quantum: float) -> int:
    """Returns an upper bound of a step's quanta, as if everything that it moves were in the worst memory."""
    moved = problem.weight_seconds[step] + problem.output_seconds[step] + problem.read_seconds[reads].sum(0)
    seconds = problem.compute[step] + problem.input_seconds[step] + moved.sum()
    return int(min(seconds / quantum, 2 * QUANTA)) + 1


def _add_capacities(model: Model, problem: MapProblem, weights: list, outputs: list, row: np.ndarray) -> None:
    """Limits each memory but the largest at the steps where most is live. As pages are rounded down, a map may be a
    little too large, which the compiler repairs; the bound remains valid.
    """
    unit = 1 + int(problem.weight_pages.sum() + problem.tensor_pages.sum()) // MAX_PAGES
    weight_pages, tensor_pages, capacity = (
        array // unit for array in (problem.weight_pages, problem.tensor_pages, problem.capacity)
    )
    heavy = np.flatnonzero(weight_pages).tolist()
    resident = [0]  # pages of weights in each memory, at all steps
    for memory in range(1, problem.memories):
        hinted = int(weight_pages[row[: problem.steps] == memory].sum())
        resident.append(model.integer(0, int(capacity[memory]), hinted))
        model.cp.add(resident[memory] == sum(int(weight_pages[s]) * weights[s][memory] for s in heavy))
    live = [np.flatnonzero((problem.writer <= step) & (step <= problem.last)) for step in range(problem.steps)]
    for step, tensors in enumerate(live):
        if step + 1 < len(live) and set(tensors.tolist()) <= set(live[step + 1].tolist()):
            continue
        for memory in range(1, problem.memories):
            pages = sum(int(tensor_pages[t]) * outputs[problem.writer[t]][memory] for t in tensors)
            model.cp.add(resident[memory] + pages <= int(capacity[memory]))
