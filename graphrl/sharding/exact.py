"""Exact search of small reduced problems: strategies that no good plan has are left out, and CP-SAT solves the rest.

The messages of the dual prove for each strategy, and for each pair of strategies of an edge, a bound of the plans that
have it. Those with a bound above the best plan's cost go, which lets the rules of the reduction merge further groups.
All bounds are integers, of messages and of CP-SAT alike.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from graphrl.errors import ProblemError
from graphrl.sharding import messages as dual
from graphrl.sharding import moves
from graphrl.sharding.multipliers import Ascent, byte_rows, evaluate
from graphrl.sharding.problem import PROHIBITIVE
from graphrl.sharding.reduce import restrict_problem
from graphrl.sharding.rules import Reduced
from graphrl.solvers.exact.engine import or_tools

SETTLING = 10  # pairs of sweeps at the best multipliers, before strategies are left out
TICK = 0.1  # seconds between two looks at whether to stop
STEPS = 40  # of the ascent of a part of a problem
MAX_LIMIT = 2**61  # scaled cost up to which strategies are left out
ROWS = 100  # times whose bytes CP-SAT limits at first
GAIN = 0.97  # a smaller problem has at most this share of the pairs


class Answer(NamedTuple):
    """Result of an exact search.

    Attributes:
      strategies: `[n]` of the full problem, of a plan; None without a plan.
      bound: lower bound of the cost of plans within the limit; the limit + 1 if no plan is within it.
      proven: whether the plan is the best one, or no plan is within the limit.
      work: deterministic seconds of CP-SAT.
    """

    strategies: np.ndarray | None
    bound: int
    proven: bool
    work: float


UNKNOWN = Answer(None, 0, False, 0.0)


class Limits(NamedTuple):
    """Limits of an exact search, and its seed.

    Attributes:
      pairs: most pairs of strategies that CP-SAT takes.
      stop: called ten times a second; True ends the search.
      work: limit in CP-SAT's deterministic seconds.
      seed: CP-SAT's seed.
    """

    pairs: int
    stop: Callable[[], bool]
    work: float
    seed: int


def narrow_problem(ascent: Ascent, most: int) -> Reduced:
    """Returns a problem with a best plan of those that cost at most `most`, without what the messages exclude.

    Raises:
      ProblemError: there is no such plan.
    """
    reduced, model, messages = ascent.reduced, ascent.model, ascent.messages
    room = dual.price(model, messages, ascent.multipliers)
    for _ in range(SETTLING):
        for forward in (True, False):
            dual.sweep(model, messages, forward)
    messages = messages._replace(message=messages.message.copy())
    lower = np.full(len(reduced.cost), -dual.LARGEST, np.int64)
    for forward in (True, False, True, False):
        bound = int(dual.tighten(model, messages, forward, lower))
    limit = (most - reduced.constant) * messages.scale + room
    if limit > MAX_LIMIT:
        return reduced
    edge_cost = reduced.edge_cost.copy()
    if bound > limit:
        raise ProblemError(f"no plan costs {most:,} or less")
    dual.mark_pairs(model, messages, bound, limit, edge_cost)
    return restrict_problem(reduced._replace(edge_cost=edge_cost), lower <= limit)


def is_available() -> bool:
    """Loads CP-SAT, which takes half a second; False where another package's symbols clash."""
    try:
        or_tools()
    except ProblemError:
        return False
    return True


def solve_exactly(reduced: Reduced, most: int, limits: Limits) -> Answer:
    """Searches for the best plan of a cost of at most `most` by CP-SAT.

    Bytes are limited at some times first, and where a plan exceeds the room, in the next round.

    Raises:
      ProblemError: CP-SAT cannot be imported.
    """
    cp_model = or_tools()
    model, chosen = _program(reduced, most)
    times, spent = len(reduced.room), 0.0
    wrong = np.unique(np.linspace(0, times - 1, min(times, ROWS)).astype(np.int64))
    while True:
        _limit_bytes(model, chosen, reduced, set(wrong.tolist()))
        solver = cp_model.CpSolver()
        status = _solve(solver, model, limits, max(0.01, limits.work - spent))
        spent += float(solver.response_proto.deterministic_time)
        if status == cp_model.INFEASIBLE:
            return Answer(None, most + 1, True, spent)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return UNKNOWN._replace(work=spent)
        label = np.flatnonzero([solver.boolean_value(var) for var in chosen]) - reduced.offset[:-1]
        cost, above = evaluate(reduced, label)  # an integer; the solver states floats
        if (above <= 0).all():
            proven = status == cp_model.OPTIMAL
            return Answer(reduced.expand(label), reduced.constant + (cost if proven else 0), proven, spent)
        if limits.stop() or spent >= limits.work:
            return UNKNOWN._replace(work=spent)
        wrong = np.flatnonzero(above > 0)
        wrong = np.unique(np.append(wrong[:: 1 + len(wrong) // 10], np.argmax(above)))


def _solve(solver: Any, model: Any, limits: Limits, work: float) -> int:
    """Runs CP-SAT until it ends, `limits.stop`, or `work` deterministic seconds have passed; returns its status."""
    for name, value in {
        "max_deterministic_time": work, "random_seed": limits.seed, "num_workers": 1, "linearization_level": 2,
        "catch_sigint_signal": False, "absolute_gap_limit": 0.0,  # a gap in floats, 0 for close costs above 2^53
    }.items():  # fmt: skip
        setattr(solver.parameters, name, value)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(TICK):
            if limits.stop():
                solver.stop_search()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return solver.solve(model)
    finally:
        ended.set()
        watcher.join()


def _program(reduced: Reduced, most: int) -> tuple:
    """The constraint program without memory: literals of strategies, and of each edge's pairs, one true in each row."""
    model, weighted_sum = or_tools().CpModel(), or_tools().LinearExpr.weighted_sum
    chosen = [model.new_bool_var("") for _ in reduced.cost]
    weights, literals = reduced.cost.tolist(), list(chosen)
    for start, end in zip(reduced.offset[:-1].tolist(), reduced.offset[1:].tolist(), strict=True):
        model.add_exactly_one(chosen[start:end])
    for e, (a, b) in enumerate(reduced.edges.tolist()):
        cost = reduced.edge_cost[reduced.edge_offset[e] : reduced.edge_offset[e + 1]]
        row, column = np.divmod(np.flatnonzero(cost < PROHIBITIVE), reduced.sizes[b])
        pairs = [model.new_bool_var("") for _ in row]
        weights += cost[cost < PROHIBITIVE].tolist()
        literals += pairs
        for group, of_pair in ((a, row), (b, column)):
            rows: list[list] = [[] for _ in range(reduced.sizes[group])]
            for s, pair in zip(of_pair.tolist(), pairs, strict=True):
                rows[s].append(pair)
            for s, own in enumerate(rows):
                model.add_exactly_one([*own, ~chosen[reduced.offset[group] + s]])
    total = weighted_sum(literals, weights)
    model.add(total <= most - reduced.constant)
    model.minimize(total)
    return model, chosen


def _limit_bytes(model: Any, chosen: list, reduced: Reduced, times: set[int]) -> None:
    """Adds to the program that the bytes fit into the room at the given times."""
    weighted_sum = or_tools().LinearExpr.weighted_sum
    for time, usage in enumerate(byte_rows(reduced)):
        if time in times:
            at = np.flatnonzero(usage)
            used = weighted_sum([chosen[i] for i in at.tolist()], usage[at].tolist())
            model.add(used <= int(reduced.room[time]))


def solve_part(ascent: Ascent, most: int, limits: Limits) -> Answer:
    """Searches for the best plan of a cost of at most `most` in what the messages of an ascent leave."""
    try:
        while True:
            part = narrow_problem(ascent, most)
            if len(part.sizes) == 0 or len(part.edge_cost) >= GAIN * len(ascent.reduced.edge_cost):
                break
            ascent = _ascend(part, ascent.scale, limits.stop)
    except ProblemError:
        return Answer(None, most + 1, True, 0.0)
    if part.constant > most:
        return Answer(None, most + 1, True, 0.0)
    if len(part.sizes) == 0:
        return _decided(part)
    if limits.stop() or len(part.edge_cost) > limits.pairs:
        return UNKNOWN
    return solve_exactly(part, most, limits)


def solve_restricted(reduced: Reduced, keep: np.ndarray, most: int, limits: Limits) -> Answer:
    """Searches for the best plan of a cost of at most `most` with the strategies of `[S] bool` alone.

    If they leave one plan, that is the answer, whatever it costs.
    """
    try:
        part = restrict_problem(reduced, keep)
    except ProblemError:
        return Answer(None, most + 1, True, 0.0)
    if len(part.sizes) == 0:
        return _decided(part)
    return solve_part(_ascend(part, float(max(1, most - part.constant)), limits.stop), most, limits)


def _decided(reduced: Reduced) -> Answer:
    """The only plan of a problem that the reduction has decided."""
    return Answer(reduced.expand(np.zeros(0, np.int64)), reduced.constant, True, 0.0)


def _ascend(reduced: Reduced, scale: float, stop: Callable[[], bool]) -> Ascent:
    """Returns an ascent after `STEPS` steps, or after fewer if `stop` is true."""
    ascent = Ascent(reduced, moves.model_of(reduced), scale)
    for _ in range(STEPS):
        if stop():
            break
        ascent.step()
    return ascent
