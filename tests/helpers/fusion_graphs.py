"""Graphs and problems that exercise every rule of fusion."""

import random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.roofline import Chip

CHIP = Chip("tests", flops_per_second=4.0, bytes_per_second=2.0, launch_seconds=1.0)
TYPES = ["add", "mul", "Relu", "multiply", "reshape", "reshape", "reduce_sum", "dot_general", "scan"]


@st.composite
def fusable_graphs(draw: st.DrawFn, max_ops: int = 9) -> ComputationGraph:
    """Graphs with many ops that may be inlined, and with every obstacle to it."""
    inputs = [Tensor("x", 4), Tensor("y", 2)]
    tensors, ops = list(inputs), list[Op]()
    for i in range(draw(st.integers(1, max_ops))):
        read = draw(st.lists(st.sampled_from(tensors[-6:]), max_size=3))
        share = draw(st.sampled_from(["", "", "", "alias", "reuses"])) if read else ""
        size = read[0].bytes if share else draw(st.integers(0, 9))
        count = draw(st.sampled_from([1, 1, 1, 1, 1, 0, 2]))
        shared: dict[str, Any] = {share: read[0].name} if share else {}
        outputs = [Tensor(f"t{i}.{k}", size, **(shared if k == 0 else {})) for k in range(count)]
        after = draw(st.sampled_from([(), (), (), (), tuple(op.name for op in ops[-1:])]))
        ops.append(
            Op(
                f"op{i}",
                draw(st.sampled_from(TYPES)),
                1.0,
                tuple(tensor.name for tensor in read),
                tuple(outputs),
                after,
                workspace_bytes=draw(st.integers(0, 3)),
                weight_bytes=draw(st.integers(0, 3)),
                flops=draw(st.integers(1, 20)),
            )
        )
        tensors += outputs
    kept = draw(st.lists(st.sampled_from(tensors), max_size=1))
    random.Random(draw(st.integers(0, 99))).shuffle(ops)
    return ComputationGraph("random", tuple(ops), tuple(inputs), tuple(tensor.name for tensor in kept))


@st.composite
def fusion_problems(draw: st.DrawFn, max_ops: int = 9) -> FusionProblem:
    """Problems with limits that sometimes bind."""
    graph = draw(fusable_graphs(max_ops))
    return fusion_problem(
        graph, CHIP, max_ops=draw(st.sampled_from([1, 2, 3, 4, 64])), max_arguments=draw(st.sampled_from([1, 2, 3, 40]))
    )


@st.composite
def fusion_priorities(draw: st.DrawFn, problem: FusionProblem) -> np.ndarray:
    """Priorities `[n]` int64, from 0 to 3."""
    n = problem.num_ops
    return np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int64)


def chain_graph(types: str, width: int = 8) -> ComputationGraph:
    """A chain of ops of these types; each writes `width` bytes in `width` operations."""
    names = types.split()
    ops = [
        Op(f"{i}", kind, 1.0, (f"t{i - 1}" if i else "x",), (Tensor(f"t{i}", width),), flops=width)
        for i, kind in enumerate(names)
    ]
    return ComputationGraph("chain", tuple(ops), (Tensor("x", width),), (f"t{len(ops) - 1}",))


def viewed_graph() -> ComputationGraph:
    """Two reshapes in a row that are aliases, the first of which may be inlined; and an op that reuses the second's
    buffer.
    """
    ops = (
        Op("make", "dot_general", outputs=(Tensor("a", 8),), flops=1),
        Op("view", "reshape", inputs=("a",), outputs=(Tensor("b", 8, alias="a"),)),
        Op("again", "reshape", inputs=("b",), outputs=(Tensor("c", 8, alias="b"),)),
        Op("scale", "mul", inputs=("c",), outputs=(Tensor("d", 8, reuses="c"),)),
        Op("use", "dot_general", inputs=("c", "d"), outputs=(Tensor("e", 8),), flops=1),
    )
    return ComputationGraph("viewed", ops)


def turned_graph() -> ComputationGraph:
    """An addition that reuses the buffer of its operand, and also reads its transpose, which may be inlined."""
    ops = (
        Op("make", "dot_general", outputs=(Tensor("a", 8),), flops=1),
        Op("turn", "transpose", inputs=("a",), outputs=(Tensor("b", 8),)),
        Op("add", "add", inputs=("a", "b"), outputs=(Tensor("c", 8, reuses="a"),)),
    )
    return ComputationGraph("turned", ops)
