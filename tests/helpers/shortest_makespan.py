"""The shortest makespan of a small graph, by dynamic programming."""

import functools

from graphrl.graphs.graph import ComputationGraph


def optimum(graph: ComputationGraph, devices: int) -> float:
    """The shortest makespan, by dynamic programming over the started and the running ops.

    At each moment some ready op starts on a free device, or time advances to the next end. No priorities, no keys, no
    placement.
    """
    arrays = graph.arrays
    source, target = arrays.dependencies()
    before = [frozenset(source[target == v].tolist()) for v in range(arrays.num_ops)]
    runtime = arrays.runtime.tolist()

    @functools.cache
    def shortest(started: frozenset[int], running: tuple[tuple[float, int], ...]) -> float:
        if len(started) == len(runtime) and not running:
            return 0.0
        busy = {op for _, op in running}
        best = float("inf")
        if len(running) < devices:
            for op in range(len(runtime)):
                if op not in started and before[op] <= started - busy:
                    best = min(best, shortest(started | {op}, tuple(sorted([*running, (runtime[op], op)]))))
        if running:
            step = running[0][0]
            left = tuple((seconds - step, op) for seconds, op in running if seconds > step)
            best = min(best, step + shortest(started, left))
        return best

    return shortest(frozenset(), ())
