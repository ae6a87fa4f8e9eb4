"""Fusion on the host: which ops may be inlined, members and costs of kernels, and the order of priorities."""

import numpy as np
import pytest
from fusion_graphs import (
    CHIP,
    chain_graph,
    fusable_graphs,
    fusion_priorities,
    fusion_problems,
    turned_graph,
    viewed_graph,
)
from hypothesis import given
from hypothesis import strategies as st

from graphrl.costs import exact
from graphrl.costs.fusion.exact import fuse, fused_graph, fusion_of
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.costs.problem import Problem
from graphrl.errors import GraphError, PlanError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


def diamond() -> ComputationGraph:
    """a (dot, 8 B) -> b = exp a (8 B) -> c = sum b (1 B), d = b / c (8 B), kept; a has 80 FLOPs, each other op 8."""
    return ComputationGraph(
        "diamond",
        (
            Op("a", "dot_general", inputs=("x",), outputs=(Tensor("a0", 8),), flops=80),
            Op("b", "exp", inputs=("a0",), outputs=(Tensor("b0", 8),), flops=8),
            Op("c", "reduce_sum", inputs=("b0",), outputs=(Tensor("c0", 1),), flops=8),
            Op("d", "div", inputs=("b0", "c0"), outputs=(Tensor("d0", 8),), flops=8),
        ),
        (Tensor("x", 4),),
        ("d0",),
    )


def kernels_by_paths(problem: FusionProblem, inlined: np.ndarray) -> dict[int, tuple[set[int], set[int]]]:
    """Members and arguments of every kernel by definition: walks all paths of inlined ops."""

    def walk(op: int) -> tuple[set[int], set[int]]:
        members, arguments = {op}, set[int]()
        for tensor in problem.read(op).tolist():
            source = int(problem.producer[tensor])
            if source >= 0 and inlined[source]:
                inner = walk(source)
                members, arguments = members | inner[0], arguments | inner[1]
            else:
                arguments.add(tensor)
        return members, arguments

    return {root: walk(root) for root in np.flatnonzero(~inlined).tolist()}


def test_inlining_computes_an_op_in_every_kernel_that_reads_it() -> None:
    problem = fusion_problem(diamond(), CHIP)  # 4 operations and 2 bytes a second, launch 1 s
    assert problem.names(problem.legal) == ("b",)  # a is a dot, c reduces, d is kept
    none, fused = (fuse(problem, np.full(4, priority)) for priority in (0, 1))
    assert none.op_seconds.tolist() == [1 + 80 / 4, 1 + 16 / 2, 1 + 9 / 2, 1 + 17 / 2]
    # b runs in both kernels, and neither reads b0: c reads 8 and writes 1 B, d reads a0 and c0 and writes 8 B
    assert fused.op_seconds.tolist() == [21.0, 0.0, 1 + 9 / 2, 1 + 17 / 2]
    assert fused.members == {0: (0,), 2: (1, 2), 3: (1, 3)}
    assert fused.seconds == 36.0


def test_the_fused_graph_of_the_diamond() -> None:
    graph = fused_graph(fuse(fusion_problem(diamond(), CHIP), np.ones(4, int)))
    assert [op.name for op in graph.ops] == ["a", "c", "d"]
    assert [op.inputs for op in graph.ops] == [("x",), ("a0",), ("c0", "a0")]
    assert [op.flops for op in graph.ops] == [80, 16, 16]
    costs = exact.evaluate(graph, Problem("makespan"), np.zeros(3, int), np.arange(3))
    assert costs.makespan == 21 + 5.5 + 9.5


def test_an_inlined_op_spares_a_transfer() -> None:
    graph = fused_graph(fuse(fusion_problem(diamond(), CHIP), np.ones(4, int)))
    problem = Problem("makespan", 2, "free", 0.0, 1.0)
    order = [0, 3 + 0 * 2 + 1, 1, 3 + 1 * 2 + 1, 2]  # a, a0 -> 1, c, c0 -> 1, d
    costs = exact.evaluate(graph, problem, np.array([0, 0, 1]), np.array(order))
    assert costs.makespan == 21 + 8 + 9.5  # d waits for a0, which takes 8 s, and not for b0 as well


def test_the_least_priority_falls_first_and_the_lower_index_of_two() -> None:
    ops = [Op(f"{i}", "mul", inputs=(f"x{i}", f"y{i}"), outputs=(Tensor(f"t{i}", 1),), flops=1) for i in range(3)]
    last = Op("last", "concatenate", inputs=("t0", "t1", "t2"), outputs=(Tensor("t3", 3),), flops=1)
    inputs = tuple(Tensor(f"{name}{i}", 1) for name in "xy" for i in range(3))
    problem = fusion_problem(ComputationGraph("three", (*ops, last), inputs), CHIP, max_arguments=5)
    assert problem.names(fuse(problem, np.array([2, 1, 2, 0])).inlined) == ("0", "2")
    assert problem.names(fuse(problem, np.array([1, 1, 1, 0])).inlined) == ("1", "2")
    three = fusion_problem(problem.graph, CHIP, max_arguments=3)
    assert problem.names(fuse(three, np.array([2, 1, 3, 0])).inlined) == ()


@pytest.mark.parametrize("names", ["mul reduce_sum dot_general", "multiply reduce dot", "Mul ReduceSum MatMul"])
def test_jaxprs_hlo_and_onnx_have_one_table(names: str) -> None:
    light, reduction, heavy = names.split()
    fusions = [chain_graph(f"{light} {reader} {heavy}") for reader in (light, reduction, heavy)]
    legal = [fusion_problem(graph, CHIP).legal.tolist() for graph in fusions]
    assert legal == [[True, False, False], [True, False, False], [False, False, False]]


@pytest.mark.parametrize("kind", ["optimization_barrier", "while", "unknown"])
def test_what_is_neither_elementwise_nor_moves_data_stays_apart(kind: str) -> None:
    assert not fusion_problem(chain_graph(f"mul {kind} mul"), CHIP).legal.any()


@given(st.data())
def test_kernels_are_those_of_the_definition(data: st.DataObject) -> None:
    problem = data.draw(fusion_problems())
    fusion = fuse(problem, data.draw(fusion_priorities(problem)))
    kernels = kernels_by_paths(problem, fusion.inlined)
    assert {root: set(members) for root, members in fusion.members.items()} == {r: m for r, (m, _) in kernels.items()}
    assert {root: set(read) for root, read in fusion.arguments.items()} == {r: a for r, (_, a) in kernels.items()}
    for root, (members, arguments) in kernels.items():
        work = sum(problem.flops[op] for op in members) / CHIP.flops_per_second
        moved = (sum(problem.tensor_bytes[t] for t in arguments) + problem.output_bytes[root]) / CHIP.bytes_per_second
        expected = 0.0 if all(problem.renames[op] for op in members) else CHIP.launch_seconds + max(work, moved)
        assert fusion.op_seconds[root] == pytest.approx(expected)


@given(st.data())
def test_what_holds_of_every_fusion(data: st.DataObject) -> None:
    problem = data.draw(fusion_problems())
    priorities = data.draw(fusion_priorities(problem))
    fusion = fuse(problem, priorities)
    graph = fused_graph(fusion)  # a cycle would be refused
    assert not fusion.inlined[priorities == 0].any()
    assert set(fusion.members) == set(np.flatnonzero(~fusion.inlined).tolist())
    for root, members in fusion.members.items():
        assert len(members) == 1 or len(members) <= problem.max_ops
        assert len(members) == 1 or len(fusion.arguments[root]) <= problem.max_arguments
    assert graph.outputs == problem.graph.outputs
    assert sum(op.weight_bytes for op in graph.ops) == sum(op.weight_bytes for op in problem.graph.ops)
    assert set().union(*fusion.members.values()) == set(range(problem.num_ops))
    again = fusion_of(problem, fusion.inlined)
    assert (again.members, again.arguments) == (fusion.members, fusion.arguments)


@given(fusable_graphs())
def test_without_priorities_the_graph_stays_but_for_run_times(graph: ComputationGraph) -> None:
    problem = fusion_problem(graph, CHIP)
    fused = fused_graph(fuse(problem, np.zeros(problem.num_ops, int)))
    assert [op.name for op in fused.ops] == [op.name for op in graph.ops]
    assert fused.tensor_names == graph.tensor_names
    for own, op in zip(graph.ops, fused.ops, strict=True):
        assert (own.outputs, set(own.inputs), own.after) == (op.outputs, set(op.inputs), op.after)
    assert np.array_equal(fused.arrays.topological, graph.arrays.topological)


@given(st.data())
def test_what_is_legal_by_all_its_reasons(data: st.DataObject) -> None:
    graph = data.draw(fusable_graphs())
    problem = fusion_problem(graph, CHIP)
    light = {"add", "mul", "Relu", "multiply", "reshape"}
    for index, op in enumerate(graph.ops):
        readers = [other for other in graph.ops if {t.name for t in op.outputs} & set(other.inputs)]
        controlled = op.after or any(op.name in other.after for other in graph.ops)
        expected = op.type in light and len(op.outputs) == 1 and not controlled and bool(readers)
        expected = expected and all(reader.type in {*light, "reduce_sum"} for reader in readers)
        expected = expected and op.outputs[0].name not in graph.outputs
        assert problem.legal[index] == expected


def test_an_alias_is_followed_through_inlined_ops() -> None:
    problem = fusion_problem(viewed_graph(), CHIP)
    inlined = np.array([False, True, False, False, False])
    tensors = {t.name: t for op in fused_graph(fusion_of(problem, inlined)).ops for t in op.outputs}
    assert tensors["c"].alias == "a"
    assert tensors["d"].reuses == "c"


def test_a_buffer_is_not_taken_over_that_another_member_reads() -> None:
    problem = fusion_problem(turned_graph(), CHIP)
    assert fused_graph(fusion_of(problem, np.zeros(3, bool))).ops[-1].outputs[0].reuses == "a"
    assert fused_graph(fusion_of(problem, np.array([False, True, False]))).ops[-1].outputs[0].reuses is None


@pytest.mark.parametrize(
    ("priorities", "message"),
    [
        (np.zeros(3, int), "fusion priorities of shape (3,) and type int64: must be 4 integers"),
        (np.zeros(4), "fusion priorities of shape (4,) and type float64: must be 4 integers"),
        (np.array([0, -2, 0, 0]), "fusion priority -2: must be at least 0"),
    ],
)
def test_wrong_priorities_are_refused(priorities: np.ndarray, message: str) -> None:
    with pytest.raises(PlanError) as error:
        fuse(fusion_problem(diamond(), CHIP), priorities)
    assert str(error.value) == message


def test_an_inlining_that_is_not_legal_or_too_large_is_refused() -> None:
    with pytest.raises(PlanError, match=r"^op 'a' of type 'dot_general' cannot be inlined$"):
        fusion_of(fusion_problem(diamond(), CHIP), np.array([True, False, False, False]))
    problem = fusion_problem(chain_graph("mul " * 66), CHIP)
    with pytest.raises(PlanError, match=r"^the kernel of op '65' has 66 ops: must be at most 64$"):
        fusion_of(problem, problem.legal)


def test_a_graph_without_flops_is_refused() -> None:
    with pytest.raises(GraphError, match="has run times and no flops"):
        fusion_problem(layered(20, 0))
