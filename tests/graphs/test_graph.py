"""ComputationGraph: its rules, its index arrays on known graphs, and properties of all graphs."""

import copy
import itertools
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs
from worked_example import TINY

from graphrl.errors import GraphError
from graphrl.graphs.graph import EXTERNAL, NONE, ComputationGraph, Op, Tensor
from graphrl.graphs.topology import numbered


def one(**fields: object) -> ComputationGraph:
    """A graph of one op that reads x and writes y."""
    op = {"name": "a", "inputs": ("x",), "outputs": (Tensor("y", 4),)} | fields
    return ComputationGraph("one", (Op(**op),), (Tensor("x", 4),))  # type: ignore[arg-type]


def test_arrays_of_the_worked_example() -> None:
    arrays = TINY.arrays
    assert (arrays.num_ops, arrays.num_tensors) == (4, 4)
    assert arrays.runtime.tolist() == [1, 2, 3, 1]
    assert arrays.workspace_bytes.tolist() == [0, 0, 2, 0]
    assert arrays.producer.tolist() == [0, 1, 2, 3]
    assert arrays.tensor_bytes.tolist() == [4, 3, 5, 1]
    assert arrays.use_tensor.tolist() == [0, 0, 1, 2]
    assert arrays.use_op.tolist() == [1, 2, 3, 3]
    assert arrays.topological.tolist() == [0, 1, 2, 3]
    assert not arrays.kept.any()
    assert [pairs.tolist() for pairs in arrays.dependencies()] == [[0, 0, 1, 2], [1, 2, 3, 3]]
    for field in ("runtime", "flops"):
        assert getattr(arrays, field).dtype == np.float64
    for field in ("workspace_bytes", "weight_bytes", "tensor_bytes"):
        assert getattr(arrays, field).dtype == np.int64
    for field in ("producer", "alias", "reuses", "use_tensor", "use_op", "control_source", "topological"):
        assert getattr(arrays, field).dtype == np.int32


def test_arrays_of_a_graph_with_everything() -> None:
    """Ops in reverse order, an op of two outputs and one without, repeated inputs, control edges, kept tensors."""
    graph = ComputationGraph(
        "all",
        (
            Op("sink", inputs=("p1", "x", "p1"), after=("mid", "mid", "first")),
            Op("mid", inputs=("p0",), outputs=(Tensor("m", 9, alias="p0"),), weight_bytes=7, flops=5),
            Op("first", inputs=("x",), outputs=(Tensor("p0", 9), Tensor("p1", 0, alias="x")), runtime=0.5),
            Op("last", inputs=("m", "p1"), outputs=(Tensor("z", 9, reuses="m"),)),
        ),
        inputs=(Tensor("x", 3),),
        outputs=("x", "m", "p0", "m"),
    )
    arrays = graph.arrays
    assert graph.tensor_names == ("m", "p0", "p1", "z")
    assert arrays.producer.tolist() == [1, 2, 2, 3]
    assert arrays.kept.tolist() == [True, True, False, False]
    assert arrays.alias.tolist() == [1, NONE, EXTERNAL, NONE]
    assert arrays.reuses.tolist() == [NONE, NONE, NONE, 0]
    assert list(zip(arrays.use_tensor.tolist(), arrays.use_op.tolist(), strict=True)) == [
        (0, 3),
        (1, 1),
        (2, 0),
        (2, 3),
    ]
    assert list(zip(arrays.control_source.tolist(), arrays.control_target.tolist(), strict=True)) == [(1, 0), (2, 0)]
    assert arrays.topological.tolist() == [2, 1, 0, 3]
    assert [pairs.tolist() for pairs in arrays.dependencies()] == [[1, 1, 2, 2, 2], [0, 3, 0, 1, 3]]
    assert arrays.successors == [[], [0, 3], [0, 1, 3], []]
    assert arrays.predecessors == [[1, 2], [2], [], [1, 2]]
    assert arrays.rank.argsort().tolist() == arrays.topological.tolist()
    assert (arrays.depth.tolist(), arrays.height.tolist()) == ([2, 1, 0, 2], [0, 1, 2, 0])
    assert arrays.ancestors().astype(int).tolist() == [[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 0]]
    assert arrays.weight_bytes.tolist() == [0, 7, 0, 0]
    assert arrays.flops.tolist() == [0, 5, 0, 0]


def test_a_single_op_without_tensors() -> None:
    arrays = ComputationGraph("g", (Op("a"),)).arrays
    assert arrays.num_tensors == 0
    assert arrays.use_tensor.shape == arrays.control_source.shape == (0,)
    assert [pairs.shape for pairs in arrays.dependencies()] == [(0,), (0,)]


def test_equality_hash_repr_and_pickle() -> None:
    graph, same = TINY, copy.deepcopy(TINY)
    assert graph == same
    assert hash(graph) == hash(same)
    assert graph != one()
    assert graph != "tiny"
    assert repr(graph) == "ComputationGraph('tiny', 4 ops, 4 tensors, 4 uses)"
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_numpy_numbers_are_numbers() -> None:
    graph = one(runtime=np.float32(0.5), workspace_bytes=np.int64(3), flops=np.int32(2), weight_bytes=2**62)
    assert graph.arrays.workspace_bytes.tolist() == [3]
    assert one(runtime=np.int64(2)).arrays.runtime.tolist() == [2.0]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"name": ""}, "an op has an empty name"),
        ({"name": 3}, "an op has the name 3: must be text"),
        ({"runtime": float("nan")}, "op 'a': runtime is nan: must be a finite number of seconds"),
        ({"runtime": np.float64("nan")}, "op 'a': runtime is np.float64(nan): must be a finite"),
        ({"runtime": float("inf")}, "op 'a': runtime is inf: must be a finite"),
        ({"runtime": -1e-9}, "op 'a': runtime is -1e-09: must be at least 0 seconds"),
        ({"runtime": 1e31}, "op 'a': runtime is 1e+31: must be a finite number up to 10^30"),
        ({"runtime": 10**5000}, "op 'a': runtime is 2^16609 or more"),
        ({"runtime": -(10**5000)}, "op 'a': runtime is -2^16609 or more"),
        ({"runtime": True}, "op 'a': runtime is True"),
        ({"runtime": 1j}, "op 'a': runtime is 1j"),
        ({"flops": 10**5000}, "op 'a': flops is 2^16609 or more: must be an integer from 0 to 10^30"),
        ({"flops": 1.0}, "op 'a': flops is 1.0: must be an integer"),
        ({"workspace_bytes": 10**5000}, "op 'a': workspace_bytes is 2^16609 or more: must be from 0 to 2^62"),
        ({"weight_bytes": -1}, "op 'a': weight_bytes is -1: must be from 0 to 2^62"),
        ({"weight_bytes": "x" * 500}, f"op 'a': weight_bytes is '{'x' * 36}...: must be an integral"),
        ({"outputs": (Tensor("", 4),)}, "op 'a': an output has an empty name"),
        ({"outputs": (Tensor(None, 4),)}, "op 'a': an output has the name None"),  # type: ignore[arg-type]
        ({"outputs": (Tensor("y", 4), Tensor("y", 4))}, "op 'a': output 'y' is already an output of op 'a'"),
        ({"outputs": (Tensor("y", 4, "x", "x"),)}, "op 'a', output 'y': has both alias and reuses"),
        ({"outputs": (Tensor("y", 4, reuses="z"),)}, "op 'a', output 'y': reuses names 'z', which is not an input"),
        (
            {"outputs": (Tensor("y", 4, reuses="x"), Tensor("z", 4, reuses="x"))},
            "buffer another output of this op takes",
        ),
    ],
)
def test_refusals(fields: dict[str, object], fault: str) -> None:
    with pytest.raises(GraphError) as caught:
        one(**fields)
    assert fault in str(caught.value)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


def test_reuse_of_an_external_input_may_grow() -> None:
    assert one(outputs=(Tensor("y", 5, reuses="x"),)).arrays.reuses.tolist() == [EXTERNAL]


def test_names_in_messages_stay_on_one_line() -> None:
    with pytest.raises(GraphError, match=r"^op 'a\\nb': input 'z\\u2028' is not a tensor"):
        ComputationGraph("g", (Op("a\nb", inputs=("z\u2028",)),))


def _ring(size: int, tail: int = 0) -> ComputationGraph:
    """A cycle of `size` ops, and ops that follow it."""
    after = [(i - 1) % size for i in range(size)] + [size + i - 1 for i in range(tail)]
    return ComputationGraph("ring", tuple(Op(f"v{i}", after=(f"v{j}",)) for i, j in enumerate(after)))


def test_a_cycle_is_printed_from_its_first_op() -> None:
    with pytest.raises(GraphError, match=r"^cycle: 'v0' -> 'v1' -> 'v2' -> 'v0'$"):
        _ring(3, tail=4)
    with pytest.raises(GraphError, match=r"^cycle: 'v0' -> 'v0'$"):
        _ring(1, tail=1)


def test_a_long_cycle_is_shortened() -> None:
    with pytest.raises(GraphError) as caught:
        _ring(1000)
    assert str(caught.value) == "cycle: 'v0' -> 'v1' -> 'v2' -> 'v3' -> 'v4' -> ... (995 more) -> 'v0'"


def test_ops_after_a_cycle_are_not_part_of_it() -> None:
    """The first op in the file waits for the cycle, but is not on it."""
    ops = (Op("x", after=("b",)), Op("a", after=("b", "x0")), Op("b", after=("a",)), Op("x0"))
    with pytest.raises(GraphError, match=r"^cycle: 'a' -> 'b' -> 'a'$"):
        ComputationGraph("g", ops)


@settings(max_examples=30)
@given(graphs(max_ops=10))
def test_the_topological_order_takes_the_lowest_ready_op(graph: ComputationGraph) -> None:
    source, target = graph.arrays.dependencies()
    waiting = {i: set(source[target == i].tolist()) for i in range(len(graph.ops))}
    for op in graph.arrays.topological.tolist():
        assert op == min(i for i, sources in waiting.items() if not sources)
        del waiting[op]
        for sources in waiting.values():
            sources.discard(op)
    assert not waiting


@settings(max_examples=30)
@given(graphs(max_ops=10))
def test_arrays_say_what_the_names_say(graph: ComputationGraph) -> None:
    arrays, names = graph.arrays, graph.tensor_names
    uses = {(names[t], graph.ops[v].name) for t, v in zip(arrays.use_tensor, arrays.use_op, strict=True)}
    assert uses == {(name, op.name) for op in graph.ops for name in op.inputs if name != "x"}
    assert {names[t] for t in np.flatnonzero(arrays.kept)} == set(graph.outputs) - {"x"}
    assert all(names[t] in {o.name for o in graph.ops[v].outputs} for t, v in enumerate(arrays.producer))
    assert pickle.loads(pickle.dumps(graph)) == graph


@settings(max_examples=30)
@given(graphs(max_ops=10), st.data())
def test_an_edge_back_is_found_and_the_cycle_is_real(graph: ComputationGraph, data: st.DataObject) -> None:
    source, target = graph.arrays.dependencies()
    reach = np.eye(len(graph.ops), dtype=bool)
    for op in graph.arrays.topological:
        reach[:, op] |= reach[:, source[target == op]].any(axis=1)
    first, last = data.draw(st.sampled_from(np.argwhere(reach).tolist()))
    ops = list(graph.ops)
    ops[first] = Op(**{f: getattr(ops[first], f) for f in Op.__dataclass_fields__} | {"after": (ops[last].name,)})
    with pytest.raises(GraphError) as caught:
        ComputationGraph("cyclic", tuple(ops), graph.inputs, graph.outputs)
    names = re.findall(r"'(op\d+)'", str(caught.value))
    index = {op.name: i for i, op in enumerate(ops)}
    edges = {(int(s), int(t)) for s, t in zip(source, target, strict=True)} | {(last, first)}
    assert names[0] == names[-1]
    if "more" not in str(caught.value):
        assert {(index[a], index[b]) for a, b in itertools.pairwise(names)} <= edges


@pytest.mark.parametrize("sparse", [False, True])
@given(keys=st.lists(st.integers(0, 9), max_size=30))
def test_keys_are_numbered_as_numpy_does(sparse: bool, keys: list[int]) -> None:
    array = np.array(keys, np.int64)
    wanted = np.unique(array, return_index=True, return_inverse=True)
    size = 1000 if sparse else int(array.max(initial=-1)) + 1
    for ours, theirs in zip(numbered(array, size), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
