"""Aliases and reuses on the device: chains of shared buffers, under every placement."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from device_graphs import PROBLEMS, SIZES, check, compiled, of_graph, problem_name, random_decisions, random_graphs

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import pad_batch

GRAPHS, LANES = 12, 10


def test_takeovers_and_aliases_change_peaks() -> None:
    """What the twin test compares must be there: the graphs that it draws have buffers taken over, and kept alive."""
    rng = np.random.default_rng(3)
    graphs = random_graphs(rng, GRAPHS)
    decisions = random_decisions(rng, GRAPHS, LANES, 2)

    def peaks(without: str) -> np.ndarray:
        def plain(tensor: Tensor) -> Tensor:
            return Tensor(
                tensor.name,
                tensor.bytes,
                alias=None if without == "alias" else tensor.alias,
                reuses=None if without == "reuses" else tensor.reuses,
            )

        changed = [
            dataclasses.replace(
                graph,
                ops=tuple(dataclasses.replace(op, outputs=tuple(map(plain, op.outputs))) for op in graph.ops),
            )
            for graph in graphs
        ]
        padded = pad_batch(changed, SIZES)
        costs = compiled(PROBLEMS[3])(padded, decisions)
        return np.asarray(costs.peak_memory) * np.asarray(padded.byte_unit)[None, :, None]

    with_shares = peaks(without="")
    assert (with_shares < peaks(without="reuses")).any()
    assert (with_shares < peaks(without="alias")).any()


def op(name: str, inputs: str, *outputs: Tensor) -> Op:
    return Op(name, inputs=tuple(inputs.split()), outputs=outputs)


CHAINS = [
    ComputationGraph(
        "each output takes over the buffer of the one before",
        (
            op("a", "", Tensor("a0", 13)),
            op("b", "a0", Tensor("b0", 12, reuses="a0")),
            op("c", "b0", Tensor("c0", 11, reuses="b0")),
            op("d", "c0", Tensor("d0", 11, reuses="c0"), Tensor("d1", 1)),
            op("e", "d0 d1", Tensor("e0", 10, reuses="d0")),
            op("f", "e0", Tensor("f0", 8)),
        ),
    ),
    ComputationGraph(
        "aliases of aliases, and two outputs that want their buffer",
        (
            op("a", "", Tensor("a0", 9)),
            op("b", "a0", Tensor("b0", 9, alias="a0")),
            op("c", "b0", Tensor("c0", 8, alias="b0"), Tensor("c1", 2)),
            op("d", "c0 a0", Tensor("d0", 5, reuses="c0"), Tensor("d1", 4, reuses="a0")),
            op("e", "d0 c1", Tensor("e0", 6)),
            op("f", "d1 e0", Tensor("f0", 1, reuses="d1")),
        ),
    ),
    ComputationGraph(
        "an alias of an external input has no buffer to give",
        (
            op("a", "x", Tensor("a0", 9, alias="x")),
            op("b", "a0", Tensor("b0", 8, reuses="a0")),
            op("c", "a0 b0", Tensor("c0", 7, reuses="a0")),
            op("d", "c0", Tensor("d0", 7, reuses="c0")),
        ),
        inputs=(Tensor("x", 9),),
    ),
    ComputationGraph(
        "a kept alias keeps the buffer, but not its copies elsewhere",
        (
            op("a", "", Tensor("a0", 9)),
            op("b", "a0", Tensor("b0", 9, alias="a0")),
            op("c", "a0", Tensor("c0", 8, reuses="a0")),
            op("d", "b0", Tensor("d0", 7, reuses="b0")),
            op("e", "c0 d0", Tensor("e0", 6)),
        ),
        outputs=("b0",),
    ),
]


@pytest.mark.parametrize("problem", [PROBLEMS[3], PROBLEMS[6]], ids=problem_name)
def test_chains_of_shared_buffers_under_every_placement(problem: Problem) -> None:
    padded = pad_batch(CHAINS, SIZES)
    lanes = 2**6
    decisions = random_decisions(np.random.default_rng(0), len(CHAINS), lanes, problem.devices)
    for i in range(6):
        np.asarray(decisions.placement)[i] = (np.arange(lanes) >> i) % 2 + problem.devices - 2
    costs = jax.device_get(compiled(problem)(padded, decisions))
    for (i, graph), lane in itertools.product(enumerate(CHAINS), range(lanes)):
        check(graph, costs, padded, (i, lane), (problem, *of_graph(decisions, graph, i, lane)))
