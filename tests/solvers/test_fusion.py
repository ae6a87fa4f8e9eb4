"""Rules and searches for fusion: the ops that each inlines, local optima of flips, and the limit of memory."""

import itertools
from typing import Any

import numpy as np
import pytest
from fusion_graphs import CHIP, chain_graph, fusable_graphs, fusion_priorities, fusion_problems
from hypothesis import given, settings
from hypothesis import strategies as st

import graphrl
from graphrl.costs.fusion.exact import Fusion, fuse, fusion_of
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import Plan
from graphrl.solvers.fusion.flips import anneal_from, descend_from, flip_costs
from graphrl.solvers.fusion.rules import RULES, candidates, fuse_by, largest_kernel


def forked() -> ComputationGraph:
    """big: broadcast of x (80 B from 4), read by two sums; small: exp of y (8 B from 8), read by both; one: by one."""
    ops = (
        Op("big", "broadcast_in_dim", inputs=("x",), outputs=(Tensor("big0", 80),)),
        Op("small", "exp", inputs=("y",), outputs=(Tensor("small0", 8),), flops=8),
        Op("one", "exp", inputs=("y",), outputs=(Tensor("one0", 8),), flops=8),
        Op("first", "reduce_sum", inputs=("big0", "small0", "one0"), outputs=(Tensor("a", 1),), flops=96),
        Op("second", "reduce_sum", inputs=("big0", "small0"), outputs=(Tensor("b", 1),), flops=88),
    )
    return ComputationGraph("forked", ops, (Tensor("x", 4), Tensor("y", 8)), ("a", "b"))


def legal_fusions(problem: FusionProblem) -> list[Fusion]:
    """Every fusion that keeps the limits."""
    fusions = []
    for choice in itertools.product(*([False, True] if legal else [False] for legal in problem.legal.tolist())):
        try:
            fusions.append(fusion_of(problem, np.array(choice, bool)))
        except PlanError:
            continue
    return fusions


@pytest.mark.parametrize(
    ("rule", "inlined"),
    [
        ("none", ()),
        ("single", ("one",)),
        ("xla", ("big", "one")),
        ("all", ("big", "small", "one")),
    ],
)
def test_what_each_rule_inlines(rule: str, inlined: tuple[str, ...]) -> None:
    problem = fusion_problem(forked(), CHIP)
    assert problem.names(fuse_by(rule, problem).inlined) == inlined


@settings(max_examples=60)
@given(fusion_problems(max_ops=8))
def test_rules_keep_the_limits_and_none_beats_brute_force(problem: FusionProblem) -> None:
    best = min(fusion.seconds for fusion in legal_fusions(problem))
    seconds = {rule: fuse_by(rule, problem).seconds for rule in RULES if rule != "anneal"}
    seconds["anneal"] = anneal_from(fuse_by("flips", problem), 500).seconds
    assert min(seconds.values()) >= best - 1e-9
    assert seconds["flips"] <= min(seconds["xla"], seconds["all"]) + 1e-9
    assert seconds["anneal"] <= seconds["flips"] + 1e-9


@settings(max_examples=60)
@given(st.data())
def test_no_flip_improves_where_flipping_ends(data: st.DataObject) -> None:
    problem = data.draw(fusion_problems(max_ops=8))
    start = fuse(problem, data.draw(fusion_priorities(problem)))
    end = descend_from(start)
    assert end.seconds <= start.seconds + 1e-9
    one_away = [
        other.seconds for other in legal_fusions(problem) if np.count_nonzero(other.inlined != end.inlined) == 1
    ]
    assert min(one_away, default=end.seconds) >= end.seconds - 1e-9


@settings(max_examples=60)
@given(st.data())
def test_what_each_flip_alone_costs(data: st.DataObject) -> None:
    problem = data.draw(fusion_problems(max_ops=8))
    fusion = fuse(problem, data.draw(fusion_priorities(problem)))
    costs = np.full(problem.num_ops, np.inf)
    for other in legal_fusions(problem):
        if np.count_nonzero(differs := other.inlined != fusion.inlined) == 1:
            costs[differs] = other.seconds - fusion.seconds
    np.testing.assert_allclose(flip_costs(fusion), costs, atol=1e-9)


def test_flipping_takes_an_op_out_that_costs_more_than_it_saves() -> None:
    # "heavy" takes 25 s of operations: two kernels that compute it take longer than one that writes 4 B
    ops = (
        Op("heavy", "exp", inputs=("x",), outputs=(Tensor("h", 4),), flops=100),
        Op("first", "reduce_sum", inputs=("h",), outputs=(Tensor("a", 1),), flops=4),
        Op("second", "reduce_sum", inputs=("h",), outputs=(Tensor("b", 1),), flops=4),
    )
    problem = fusion_problem(ComputationGraph("heavy", ops, (Tensor("x", 4),), ("a", "b")), CHIP)
    assert problem.names(fuse_by("all", problem).inlined) == ("heavy",)
    assert problem.names(fuse_by("flips", problem).inlined) == ()


def test_flipping_fuses_a_long_chain_up_to_the_limits() -> None:
    fusion = fuse_by("flips", fusion_problem(chain_graph("mul " * 200), CHIP))
    assert len(fusion.members) == 4  # 200 ops in kernels of at most 64


# Fusion chosen by plans of its kernels


TERMS = 12


def sum_of_products() -> ComputationGraph:
    """A sum of twelve products of 8 B each.

    Fused, one kernel reads all twelve; single ops need a product and a sum.
    """
    ops = [Op(f"make{i}", "dot_general", inputs=("x",), outputs=(Tensor(f"m{i}", 8),), flops=8) for i in range(TERMS)]
    for i in range(1, TERMS):
        last = f"s{i - 1}" if i > 1 else "m0"
        ops.append(Op(f"add{i}", "add", inputs=(last, f"m{i}"), outputs=(Tensor(f"s{i}", 8),), flops=2))
    return ComputationGraph("sum", tuple(ops), (Tensor("x", 1),), (f"s{TERMS - 1}",))


def planned(fuse: str, **options: Any) -> Plan:
    graph = sum_of_products()
    plan = graphrl.optimize(graph, fuse=fuse, chip=CHIP, objective="makespan", evaluations=2000, **options)
    plan.check(graph)
    return plan


def test_what_does_not_fit_fused_is_fused_less() -> None:
    flips, joint = (planned(fuse, memory_limit=60) for fuse in ("flips", "joint"))
    assert flips.excess > 0  # twelve products and their sum are 104 B together
    assert joint.excess == 0
    assert joint.evaluations <= 2000
    unfused = planned("none", memory_limit=60)
    assert unfused.excess == 0
    assert joint.value < unfused.value


def test_where_memory_does_not_bind_it_is_flips() -> None:
    flips, joint = (planned(fuse, memory_limit=1000) for fuse in ("flips", "joint"))
    assert joint.inlining == flips.inlining
    assert joint.value == flips.value


def test_a_method_that_ends_early_runs_once_where_nothing_is_limited() -> None:
    flips, joint = (planned(fuse, method="list", devices=2) for fuse in ("flips", "joint"))
    assert joint.evaluations == flips.evaluations
    assert joint.value == flips.value


def test_the_least_peak_is_that_of_single_ops() -> None:
    graph = sum_of_products()
    joint = graphrl.optimize(graph, fuse="joint", chip=CHIP, evaluations=2000)
    assert joint.value == graphrl.optimize(graph, fuse="none", chip=CHIP, evaluations=2000).value == 24


@settings(max_examples=30)
@given(st.data())
def test_candidates_are_different_and_of_smaller_and_smaller_kernels(data: st.DataObject) -> None:
    problem = fusion_problem(data.draw(fusable_graphs()), CHIP)
    fusions = list(candidates(problem))
    assert len({fusion.inlined.tobytes() for fusion in fusions}) == len(fusions)
    assert any(not fusion.inlined.any() for fusion in fusions)
    largest = largest_kernel(fusions[0])
    assert not largest or any(largest_kernel(fusion) <= largest // 2 for fusion in fusions)
