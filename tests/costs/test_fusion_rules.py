"""Rules and searches for fusion: what each inlines, and that flipping ends where the definition says."""

import itertools

import numpy as np
import pytest
from fusion_graphs import CHIP, chain_graph, fusable_graphs, fusion_priorities, fusion_problems
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrl.costs.fusion.exact import Fusion, fuse, fusion_of
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.errors import PlanError, ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.fusion.flips import annealed, descended, flip_costs
from graphrl.solvers.fusion.rules import RULES, fuse_by


def forked() -> ComputationGraph:
    """big = broadcast of x (80 B from 4), read by two sums; small = exp of y (8 B from 8), read by two; one of one."""
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


def test_an_unknown_rule_lists_the_known_ones() -> None:
    with pytest.raises(
        ProblemError, match=r"^unknown fusion rule 'xls': known are none, single, xla, all, flips, anneal, joint$"
    ):
        fuse_by("xls", fusion_problem(forked(), CHIP))


@settings(max_examples=60)
@given(fusion_problems(max_ops=8))
def test_rules_keep_the_limits_and_none_beats_brute_force(problem: FusionProblem) -> None:
    best = min(fusion.seconds for fusion in legal_fusions(problem))
    seconds = {rule: fuse_by(rule, problem).seconds for rule in RULES if rule != "anneal"}
    seconds["anneal"] = annealed(fuse_by("flips", problem), 500).seconds
    assert min(seconds.values()) >= best - 1e-9
    assert seconds["flips"] <= min(seconds["xla"], seconds["all"]) + 1e-9
    assert seconds["anneal"] <= seconds["flips"] + 1e-9


@settings(max_examples=60)
@given(st.data())
def test_no_flip_improves_where_flipping_ends(data: st.DataObject) -> None:
    problem = data.draw(fusion_problems(max_ops=8))
    start = fuse(problem, data.draw(fusion_priorities(problem)))
    end = descended(start)
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


def test_flipping_takes_an_op_out_that_costs_more_than_it_spares() -> None:
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


@given(fusable_graphs())
def test_rules_are_the_same_every_time(graph: ComputationGraph) -> None:
    problem = fusion_problem(graph, CHIP)
    assert np.array_equal(fuse_by("flips", problem).inlined, fuse_by("flips", problem).inlined)
