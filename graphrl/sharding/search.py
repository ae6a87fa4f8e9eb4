"""Search for a plan of a sharding problem, on all cores: bounds, labels by messages, and annealing with trees.

The problem is reduced first. One worker raises the lower bound: its multipliers price memory, and its labels, repaired
by moves of trees, are the first plans. Strategies that the bound shows to be in no better plan are left out, and CP-SAT
solves what is left if it is small for the time so far. All workers then anneal in cycles of growing length, from the
best plan or from labels under perturbed costs, and solve parts around a random group exactly. The best feasible plan
only ever improves.
"""

import functools
import threading
import time
from collections.abc import Callable

import numpy as np

from graphrl.compiled import announced
from graphrl.process import count_cores
from graphrl.sharding import moves
from graphrl.sharding.exact import narrow_problem
from graphrl.sharding.guide import Guide
from graphrl.sharding.multipliers import Ascent
from graphrl.sharding.plan import ShardingPlan
from graphrl.sharding.problem import ShardingProblem
from graphrl.sharding.reduce import reduce_problem
from graphrl.sharding.rules import Reduced
from graphrl.sharding.worker import ALL, CHUNK, Budget, Parts, Report, Shared, Worker


def search(
    problem: ShardingProblem,
    seconds: float,
    *,
    seed: int = 0,
    report: Callable[[Report], None] = lambda report: None,
    parts: Parts = ALL,
    guide: Callable[[ShardingProblem, Reduced], Guide] | None = None,
    workers: int | None = None,
    started: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    evaluations: int | None = None,
) -> tuple[ShardingPlan, Reduced]:
    """Searches for a feasible plan of least cost.

    Args:
      problem: the problem.
      seconds: wall-clock time; the search ends earlier if the plan is optimal. It also limits `evaluations`.
      seed: of the random numbers; without `evaluations`, results also depend on the machine's speed.
      report: called about ten times a second.
      parts: parts to leave out.
      guide: function that proposes labels and nodes to move, once, at the start; its time is that of the search.
      workers: threads that search (default: the number of cores).
      started: time of the clock at which the search starts, if reading the problem counts.
      clock: function that returns seconds; `time.process_time` with one worker measures on a machine that others use.
      evaluations: budget in place of the seconds: passes over all groups, of annealing or messages, and shares of moves
        of trees and of exact search. One worker then searches, and the same seed gives the same plan on any machine.

    Returns:
      The best plan, and the reduced problem.

    Raises:
      ProblemError: no plan was found, no plan is feasible, or the costs are too large.
      KeyboardInterrupt: Ctrl-C before the first plan; later ones end the search.
    """
    before = clock()
    compile_moves()
    started = clock() if started is None else started + clock() - before  # compilation does not count
    reduced = reduce_problem(problem, merge=parts.reduction)
    shared = Shared(problem, reduced, Budget(clock, started, seconds, evaluations), seed)
    if len(reduced.sizes) == 0:
        shared.offer(reduced.expand(np.zeros(0, np.int64)), reduced.constant)
        shared.raise_bound(reduced.constant)
        return shared.plan(), reduced
    moves.check_costs(moves.model_of(reduced))
    shared.guide = None if guide is None else guide(problem, reduced)
    threads = [
        threading.Thread(target=Worker(shared, number, parts).run, daemon=True)
        for number in range(1 if evaluations is not None else workers or count_cores())
    ]
    for thread in threads:
        thread.start()
    try:
        while alive := [thread for thread in threads if thread.is_alive()]:
            alive[0].join(CHUNK)
            report(shared.report())
    except KeyboardInterrupt:
        if shared.cost is None:
            raise
    finally:
        shared.stopped = True
        for thread in threads:
            thread.join()
    if shared.error is not None:
        raise shared.error
    report(shared.report())
    return shared.plan(), reduced


@functools.cache
def compile_moves() -> None:
    """Compiles the functions of the search, once for a machine, and loads them."""
    with announced(moves.blocks, "shard"):
        reduced = reduce_problem(_tiny())
        model = moves.model_of(reduced)
        state = moves.start(model, np.zeros(len(reduced.sizes), np.int64), 1.0, 0)
        reduced.expand(state.label)
        moves.anneal(model, state, 1, 1.0, 1.0, 1.0, 1.0, 0.0)
        moves.blocks(model, state, moves.scratch_of(model), 1, 1, 1.0, 1.0)
        narrow_problem(Ascent(reduced, model, 1.0), 2)
        Ascent(reduced, model, 1.0).step()


def _tiny() -> ShardingProblem:
    """Two nodes that the reduction leaves as they are."""
    return ShardingProblem(
        "tiny", np.array([0, 2, 4]), np.array([1, 0, 1, 0]), np.array([0, 1, 0, 1]), np.array([[0, 1], [0, 1]]),
        np.array([[0, 1]]), np.array([0, 4]), np.array([0, 1, 1, 0]), 1,
    )  # fmt: skip
