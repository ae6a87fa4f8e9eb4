"""Recomputation in a module's entry and in the bodies of its loops.

Each is planned as a program of its own. What a body computes again is paid for with each trip, and all of it comes off
one limit: the part of the trip itself, where XLA does not know how many there will be. The computation whose clones
save most of what the module needs comes first, then the others with what is left. Branches and calls are left alone:
what they give may be written over what they are given, whoever decides that.
"""

import time

from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.bodies import as_program, put_back, runs_of
from graphrl.xla.planning.bounds import order_of
from graphrl.xla.recompute.clones import ClonesByName
from graphrl.xla.recompute.cost import RunTimes
from graphrl.xla.recompute.plan import Recomputation, recompute
from graphrl.xla.recompute.rewrite import rewritten

LEAST_NEED = 0.05  # of the module's bytes: a computation that needs less beside what it is given is left alone
LEAST_SECONDS = 0.05  # for one computation, also where no time is left
ANYWAY = 2  # computations are looked at also where no time is left: the entry, and the body that needs most
FIRST = 0.6  # of the time that is left goes to each turn but the last one


def with_clones(module: HloModule, clones: ClonesByName) -> HloModule:
    """The module with clones in its computations."""
    for name, copies in clones.items():
        if copies:
            module = put_back(module, rewritten(_program(module, name), copies))
    return module


def recompute_everywhere(module: HloModule, *, limit: float, seconds: float, seed: int) -> Recomputation:
    """Has the computations of a scheduled module compute values again, see `recompute`.

    Args:
      limit: part of the module's estimated run time that may be spent again, 0 to 1.
      seconds: of search, of wall clock; what has begun is ended.
      seed: of the searches for orders.
    """
    end, costs, runs = time.perf_counter() + seconds, RunTimes(module), runs_of(module)
    total = costs.of_computation(module.entry.name)
    best = Recomputation(module, {}, _predicted(module), 0.0)
    bodies = {i.called[0] for c in module.sequential for i in c.instructions if i.opcode == "while"}
    needs = {name: _predicted(_program(module, name)) for name in sorted(bodies)}
    hopeful = (name for name, need in needs.items() if need >= LEAST_NEED * best.predicted)
    left = [module.entry.name, *sorted(hopeful, key=lambda name: -needs[name])]
    left = [name for name in left if costs.of_computation(name)]  # what takes no time has nothing to compute again
    while left:
        share = (FIRST if len(left) > 1 else 1.0) * (end - time.perf_counter()) / len(left)
        parts = {name: max(1.0, total / runs[name] / costs.of_computation(name)) for name in left}
        tried = [
            _better(best, name, limit - best.cost, parts[name], share, seed)
            for number, name in enumerate(left)
            if number < ANYWAY or time.perf_counter() < end
        ]
        better = [one for one in tried if one is not None]
        best = min([best, *better], key=lambda one: one.predicted)
        if not better or time.perf_counter() >= end:
            break
        left = [name for name in left if name not in best.clones]
    return best


def _predicted(module: HloModule) -> int:
    return TempPredictor(module)(module.order(module.entry))


def _program(module: HloModule, name: str) -> HloModule:
    return as_program(module, module.computations[name])


def _better(
    best: Recomputation, name: str, limit: float, part: float, seconds: float, seed: int
) -> Recomputation | None:
    """The module with clones in one more computation, if that then needs less.

    Args:
      limit: of the module's run time.
      part: one run of the computation takes one part of so many of the module's run time, each of its runs counted.
    """
    module = best.module
    program = _program(module, name)
    graph = read_hlo(program, chip=DEFAULT_CHIP)
    again = recompute(
        graph,
        order_of(graph, program.order(program.entry)),
        limit=min(1.0, limit * part),
        seconds=max(LEAST_SECONDS, seconds),
        seed=seed,
    )
    if again is None:
        return None
    changed = put_back(module, again.module)
    predicted = again.predicted if program is module else _predicted(changed)
    if predicted >= best.predicted:
        return None
    return Recomputation(changed, {**best.clones, **again.clones}, predicted, best.cost + again.cost / part)
