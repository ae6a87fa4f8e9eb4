"""Fusion chosen by its plans: what memory forbids, what it is without, and that it says what it did."""

from typing import Any

import pytest
from fusion_graphs import CHIP, fusable_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import graphrl
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import Plan
from graphrl.solvers.fusion.rules import candidates, largest_kernel

TERMS = 12


def sum_of_products() -> ComputationGraph:
    """A sum of twelve products of 8 B each. Fused, one kernel reads all twelve; single ops need a product and a sum."""
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
    assert flips.excess > 0  # twelve products and their sum are 104 B at once
    assert joint.excess == 0
    assert joint.evaluations <= 2000
    unfused = planned("none", memory_limit=60)
    assert unfused.excess == 0
    assert joint.value < unfused.value


@pytest.mark.parametrize("limit", [None, 1000])
def test_where_memory_does_not_bind_it_is_flips(limit: int | None) -> None:
    flips, joint = (planned(fuse, memory_limit=limit) for fuse in ("flips", "joint"))
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
