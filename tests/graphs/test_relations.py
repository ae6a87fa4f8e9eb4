"""The seven graphs of Topoformer: against a plain closure, disjoint, complete, and quick."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.errors import GraphError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.features import (
    FROM_CLOSURE,
    FROM_DEPENDENCY,
    FROM_REDUCTION,
    INCOMPARABLE,
    PADDING,
    RELATIONS,
    SELF,
    TO_REDUCTION,
    padded_relations,
    relations,
)
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


def plain(graph: ComputationGraph) -> np.ndarray:
    """The definition, pair by pair."""
    n = graph.arrays.num_ops
    edges = np.zeros((n, n), bool)
    edges[graph.arrays.dependencies()] = True
    closure = edges.copy()
    for k in range(n):
        closure |= closure[:, [k]] & closure[[k]]
    through = (closure.astype(int) @ closure.astype(int)) > 0  # a path of two edges or more
    codes = np.full((n, n), INCOMPARABLE)
    for j, i in zip(*np.nonzero(closure), strict=True):
        code = FROM_CLOSURE if not edges[j, i] else FROM_DEPENDENCY if through[j, i] else FROM_REDUCTION
        codes[i, j], codes[j, i] = code, code + TO_REDUCTION - FROM_REDUCTION
    np.fill_diagonal(codes, SELF)
    return codes


@settings(max_examples=30)
@given(graphs(max_ops=12))
def test_relations_are_those_of_the_definition(graph: ComputationGraph) -> None:
    codes = relations(graph)
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(codes, plain(graph))


@pytest.mark.parametrize("ops", [3, 8, 9, 64, 120])
def test_also_of_layered_graphs(ops: int) -> None:
    graph = layered(ops, 3)
    np.testing.assert_array_equal(relations(graph), plain(graph))


@settings(max_examples=30)
@given(graphs(max_ops=12), st.randoms(use_true_random=False))
def test_renumbering_ops_renumbers_the_relations(graph: ComputationGraph, random: object) -> None:
    order = list(range(len(graph.ops)))
    random.shuffle(order)  # type: ignore[attr-defined]
    other = ComputationGraph("other", tuple(graph.ops[i] for i in order), graph.inputs, graph.outputs)
    np.testing.assert_array_equal(relations(other), relations(graph)[np.ix_(order, order)])


def test_a_worked_example() -> None:
    """a -> b -> d and a -> d; c stands after a by a control edge alone; e by itself."""
    graph = ComputationGraph(
        "worked",
        (
            Op("a", outputs=(Tensor("a0", 1), Tensor("a1", 1))),
            Op("b", inputs=("a0", "a1"), outputs=(Tensor("b0", 1),)),
            Op("c", after=("a",)),
            Op("d", inputs=("a0", "b0"), outputs=(Tensor("d0", 1),)),
            Op("e", inputs=("d0",)),
        ),
    )
    expected = [[0, 4, 4, 5, 6], [1, 0, 7, 4, 6], [1, 7, 0, 7, 7], [2, 1, 7, 0, 4], [3, 3, 7, 1, 0]]
    np.testing.assert_array_equal(relations(graph), expected)
    assert len(RELATIONS) == 8


def test_padding_has_a_code_of_its_own() -> None:
    graph = layered(5, 0)
    padded = padded_relations(graph, 8)
    np.testing.assert_array_equal(padded[:5, :5], relations(graph))
    assert (padded[5:] == PADDING).all()
    assert (padded[:, 5:] == PADDING).all()
    with pytest.raises(GraphError, match="has 5 ops: must be at most the 4 that it is padded to"):
        padded_relations(graph, 4)


def test_two_thousand_ops_take_a_fraction_of_a_second() -> None:
    graph = layered(2000, 0)
    began = time.process_time()
    relations(graph)
    assert time.process_time() - began < 0.2  # 0.012 s, measured
