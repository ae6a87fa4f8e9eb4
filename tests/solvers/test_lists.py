"""Lists of ops under free transfers: their execution, and the search over them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs
from search_graphs import random_dag

import graphrl
from graphrl.costs.bounds import lower_bound
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.solvers.anneal import lists as search


def annealed(
    graph: ComputationGraph, devices: int, evaluations: int, method: str = "anneal-list", **other: Any
) -> Plan:
    """A plan by lists."""
    problem = {"objective": "makespan", "transfer": "free", **other}
    return graphrl.optimize(graph, devices=devices, method=method, evaluations=evaluations, **problem)


def played_slowly(graph: ComputationGraph, listed: np.ndarray, devices: int) -> list[float]:
    """End of each device's work by the rule alone.

    The first device that is free takes the first op of the list that could run by then, or waits for the next one that
    can.
    """
    a, free, ends = graph.arrays, [0.0] * devices, dict[int, float]()
    while len(ends) < a.num_ops:
        device = min(range(devices), key=free.__getitem__)
        ready = {
            op: max((ends[before] for before in a.predecessors[op]), default=0.0)
            for op in listed.tolist()
            if op not in ends and all(before in ends for before in a.predecessors[op])
        }
        now = [op for op, when in ready.items() if when <= free[device]]
        if now:
            free[device] += float(a.runtime[now[0]])
            ends[now[0]] = free[device]
        else:
            free[device] = min(ready.values())
    return free


@given(graphs(), st.integers(1, 3), st.integers(0, 99))
def test_a_list_is_scheduled_by_the_rule(graph: ComputationGraph, devices: int, seed: int) -> None:
    search.prepare_with_lists()
    lists = search.lists(graph, devices, np.random.SeedSequence(seed))
    np.random.default_rng(seed).shuffle(lists.listed)
    free = played_slowly(graph, lists.listed, devices)
    for bound in (0.0, 2.5, max(free)):
        lists.restart(lists.listed.copy())
        assert search.anneal(lists, 1, 1.0, 1.0, bound) == 1
        assert lists.score.tolist() == [sum(max(0.0, each - bound) for each in free), max(free)]
    assert lists.best.tolist() == lists.listed.tolist()


@given(graphs(), st.integers(1, 3))
def test_its_plans_are_between_the_bound_and_the_first_list(graph: ComputationGraph, devices: int) -> None:
    plans = [annealed(graph, devices, count) for count in (1, 60)]
    for plan in plans:
        plan.check(graph)
        assert plan.bound == lower_bound(graph, plan.problem)
        assert plan.bound is not None
        assert plan.bound <= plan.value
    assert plans[1].value <= plans[0].value


def test_it_reaches_optima_that_lists_by_levels_do_not() -> None:
    """Two devices and ops of 3, 3, 2, 2, 2 s: longest first ends at 7 s, but 3 + 3 = 2 + 2 + 2."""
    graph = ComputationGraph("five", tuple(Op(f"op{i}", runtime=seconds) for i, seconds in enumerate((3, 3, 2, 2, 2))))
    assert annealed(graph, 2, 1).value == 7
    best = annealed(graph, 2, 500)
    assert best.value == best.bound == 6
    assert best.evaluations < 500  # it ends at the bound


def packed(seed: int) -> ComputationGraph:
    """A random DAG of 100 ops."""
    return sample("regal-like", 98, seed, {"model": ("er", "ba", "ws", "sbm")[seed % 4]})[0]


@pytest.mark.parametrize("seed", [42, 45, 46])
def test_it_packs_random_dags_without_a_gap(seed: int) -> None:
    graph = packed(seed)
    plan = annealed(graph, 8, 200_000)
    assert plan.bound == plan.value < annealed(graph, 8, 1).value
    assert plan.evaluations < 200_000
    assert annealed(graph, 8, 200_000).order == plan.order


def test_more_evaluations_are_never_worse() -> None:
    """Rounds restart from the first list, and the best list is kept."""
    values = [annealed(random_dag(1, 12), 3, count, "anneal-list:hot=100").value for count in (1, 1200, 3600, 9000)]
    assert values == sorted(values, reverse=True)


def test_the_size_of_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks too small for one list, as on graphs with more ops than a chunk holds."""
    whole = annealed(packed(46), 8, 5_000)
    monkeypatch.setattr(search, "CHUNK", 1)
    assert annealed(packed(46), 8, 5_000).order == whole.order
    assert whole.value < annealed(packed(46), 8, 1).value


def waiting(count: int) -> ComputationGraph:
    """A graph where a device should wait: short ops precede two long ones each, and a filler op competes with them."""
    ops = list[Op]()
    for i in range(count):
        after = (f"b{i - 1}", f"c{i - 1}") if i else ()
        ops += [Op(f"a{i}", runtime=1.0, after=after), Op(f"fill{i}", runtime=13.0, after=after)]
        ops += [Op(f"{name}{i}", runtime=10.0, after=(f"a{i}",)) for name in "bc"]
    return ComputationGraph("waiting", tuple(ops))


def test_auto_finds_plans_where_a_device_waits() -> None:
    lists = annealed(waiting(10), 2, 20_000)
    assert annealed(waiting(10), 2, 20_000, "auto").value < 0.9 * lists.value


@pytest.mark.parametrize("other", [{"transfer": "link"}, {"transfer": "rendezvous"}, {"memory_limit": 9}])
def test_other_problems_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match="requires the objective makespan with free transfers and no memory limit"):
        annealed(random_dag(0), 2, 9, **other)
