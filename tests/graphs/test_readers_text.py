"""Graphs as text, CostGraphDef and standard task graphs: read, recognised by content, and refused in one line."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from broken import file_refusal, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.known_optima import planted
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.costgraph import parse_costgraph
from graphrl.graphs.readers.stg import is_stg, parse_stg

# Like the released data: a source without id, one op after it, and ops that read its tensors.
COSTGRAPH = """\
node {
  name: "_SOURCE"
}
node {
  name: "node_0"
  id: 1
  control_input: 0
}
node {
  name: "node_1"
  id: 2
  output_info {
    size: 70
    alias_input_port: -1
  }
  output_info {
    size: 52
    alias_input_port: -1
  }
  control_input: 1
  compute_cost: 58
}
node {
  name: "node_2"
  id: 3
  input_info {
    preceding_node: 2
    preceding_port: 1
  }
  output_info {
    size: 55
    alias_input_port: -1
  }
  control_input: 1
  compute_cost: 47
}
"""
COSTGRAPH_GRAPH = ComputationGraph(
    "small",
    (
        Op("_SOURCE"),
        Op("node_0", after=("_SOURCE",)),
        Op("node_1", runtime=58e-6, outputs=(Tensor("node_1:0", 70), Tensor("node_1:1", 52)), after=("node_0",)),
        Op("node_2", runtime=47e-6, inputs=("node_1:1",), outputs=(Tensor("node_2:0", 55),), after=("node_0",)),
    ),
)


def test_every_field_of_a_costgraph_and_way_to_write_it() -> None:
    text = """
    node: < name: 'a' ; output_info: {size: 16 shape {dim {size: 4} dim {size: -1}} dtype: DT_FLOAT}, > # comment
    node { id: 1 device: "/job:w/cpu:0" name: "b" "\\303\\251\\x21\\n" control_input: [0, 0]
           compute_time: 3 memory_time: 4 inaccurate: true host_temp_memory_size: 5 is_final: true
           temporary_memory_size: 6 persistent_memory_size: 7 output_info {} }
    node { id: 5 input_info {} compute_cost: 2000000 }
    cost { cost: 1.5e3 dimension: "x" }"""
    graph = parse_costgraph(text.encode(), "x.pbtxt.gz")
    assert graph == ComputationGraph(
        "x",
        (
            Op("a", outputs=(Tensor("a:0", 16),)),
            Op("bé!\n", outputs=(Tensor("bé!\n:0"),), after=("a", "a"), workspace_bytes=6, weight_bytes=7),
            Op("node5", runtime=2.0, inputs=("a:0",)),
        ),
        outputs=("bé!\n:0",),
    )


def test_an_alias_is_named_by_the_place_of_the_input() -> None:
    def alias(outputs: str, inputs: str = "input_info {} input_info {preceding_port: 1}") -> str | None:
        first = "node {name: 'a' output_info {size: 8 alias_input_port: -1} output_info {size: 9 alias_input_port: -1}}"
        text = f"{first} node {{id: 1 name: 'b' {inputs} output_info {{ {outputs} }} }}"
        return parse_costgraph(text.encode(), "x").ops[1].outputs[0].alias

    assert alias("size: 8 alias_input_port: -1") is None
    assert alias("size: 8 alias_input_port: 1") == "a:1"
    assert alias("size: 8 alias_input_port: 0") == "a:0"
    assert alias("size: 8") == "a:0"  # proto3: absent is 0
    assert alias("size: 8", inputs="") is None


def costgraph_text(graph: ComputationGraph) -> str:
    """A graph of whole microseconds and no reuses."""
    number = {op.name: i for i, op in enumerate(graph.ops)}
    place = {t.name: (number[op.name], k) for op in graph.ops for k, t in enumerate(op.outputs)}
    lines = []
    for op in graph.ops:
        lines += ["node {", f' name: "{op.name}"', f" id: {number[op.name]}"]
        read = [name for name in op.inputs if name in place]
        lines += [f" input_info {{ preceding_node: {place[x][0]} preceding_port: {place[x][1]} }}" for x in read]
        for tensor in op.outputs:
            alias = read.index(tensor.alias) if tensor.alias in read else -1
            lines.append(f" output_info {{ size: {tensor.bytes} alias_input_port: {alias} }}")
        lines += [f" control_input: {number[name]}" for name in op.after]
        final = bool(op.outputs) and {t.name for t in op.outputs} <= set(graph.outputs)
        lines += [f" compute_cost: {round(op.runtime * 2)}", f" is_final: {str(final).lower()}"]
        lines += [f" temporary_memory_size: {op.workspace_bytes}", f" persistent_memory_size: {op.weight_bytes}", "}"]
    return "\n".join(lines)


@settings(max_examples=30)
@given(graphs())
def test_a_costgraph_comes_back(graph: ComputationGraph) -> None:
    read = parse_costgraph(costgraph_text(graph).encode(), "x")
    a, b = graph.arrays, read.arrays
    for field in (
        "workspace_bytes",
        "weight_bytes",
        "producer",
        "tensor_bytes",
        "use_tensor",
        "use_op",
        "control_source",
        "control_target",
    ):
        assert getattr(a, field).tolist() == getattr(b, field).tolist()
    assert [op.name for op in read.ops] == [op.name for op in graph.ops]
    assert (b.runtime == (2 * a.runtime).astype(int) * 1e-6).all()
    assert b.alias.tolist() == [i if i >= 0 else -1 for i in a.alias.tolist()]


# Three tasks between the dummies 0 and 4.
STG = """\
   3
   0     0     0
   1     4     1     0
   2     2     1     0   # comments end lines
   3     3     2     1     2
   4     0     1     3
# Part 2: facts about the graph
# CP Length : 7
"""
STG_GRAPH = ComputationGraph(
    "small",
    (
        Op("task0"),
        Op("task1", runtime=4.0, after=("task0",)),
        Op("task2", runtime=2.0, after=("task0",)),
        Op("task3", runtime=3.0, after=("task1", "task2")),
        Op("task4", after=("task3",)),
    ),
)


@pytest.mark.parametrize("head", [b"5", b"5\n", b"3 4 5\n", b"once\n0 0 0\n", b'{"a": 1}', b"\x08\x01", b"1\n2\n3\n"])
def test_other_files_are_no_standard_task_graphs(head: bytes) -> None:
    assert not is_stg(head)


def stg_text(graph: ComputationGraph) -> str:
    """A graph of single-edge dependencies between two dummies, as in the format."""
    source, target = graph.arrays.dependencies()
    n = graph.arrays.num_ops
    rows = [f"{n}", "0 0 0"]
    for op in range(n):
        before = (source[target == op] + 1).tolist() or [0]
        rows.append(" ".join(map(str, [op + 1, int(graph.arrays.runtime[op]), len(before), *before])))
    last = sorted(set(range(n)) - set(source.tolist()))
    rows.append(" ".join(map(str, [n + 1, 0, len(last), *(op + 1 for op in last)])))
    return "\n".join(rows) + "\n"


@given(st.integers(2, 30), st.integers(0, 2**20))
def test_a_standard_task_graph_comes_back(num_ops: int, seed: int) -> None:
    instance = planted(num_ops, 2, seed)
    graph = parse_stg(stg_text(instance.graph).encode(), "here/planted.stg.gz")
    assert graph.name == "planted"
    assert graph.arrays.num_tensors == 0
    assert graph.arrays.runtime.tolist() == [0, *instance.graph.arrays.runtime.tolist(), 0]
    pairs = {(source, target) for target, op in enumerate(graph.ops) for source in (int(x[4:]) for x in op.after)}
    inner = {(s - 1, t - 1) for s, t in pairs if s > 0 and t <= num_ops}
    assert inner == set(zip(*(ops.tolist() for ops in instance.graph.arrays.dependencies()), strict=True))
    assert lower_bound(graph, Problem("makespan", 2, "rendezvous")) == instance.makespan


FORMATS = [(COSTGRAPH, COSTGRAPH_GRAPH, parse_costgraph), (STG, STG_GRAPH, parse_stg)]


@pytest.mark.parametrize(("text", "graph"), [item[:2] for item in FORMATS], ids=["costgraph", "stg"])
def test_text_is_recognised_by_content(tmp_path: Path, text: str, graph: ComputationGraph) -> None:
    for before in ("", "# a comment\n\n", "\ufeff", "\r\n"):
        for name in ("small", "small.json", "small.gz"):
            data = (before + text.replace("\n", "\r\n")).encode()
            (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
            assert read_graph(tmp_path / name).ops == graph.ops


BROKEN_COSTGRAPHS = [
    ('"node_1"', '"node_1', "line 10: '  name: \"node_1': String missing ending quote"),
    ("id: 3\n", "id: 2\n", "node 'node_2': id 2 is that of 'node_1' already"),
    ('"node_2"', '"node_1"', "op 'node_1' appears twice"),
    ("preceding_node: 2", "preceding_node: 7", "node 'node_2': no node has the id 7"),
    ("preceding_port: 1", "preceding_port: 2", "node 'node_2': preceding_port is 2: 'node_1' has 2 outputs"),
    ("preceding_port: 1", "port: 1", 'line 28: Message type "InputInfo" has no field named "port"'),
    ("control_input: 1\n  compute_cost: 47", "control_input: 9", "node 'node_2': no node has the id 9"),
    ("size: 52", "size: 5.5", "line 17: '    size: 5.5': Couldn't parse integer: 5.5"),
    ("size: 52", "size: " + "5" * 5000, "line 17: '    size: 5555"),
    ("size: 52", "size: -1", "node 'node_1': size is -1: must be at least 0 bytes"),
    ("70\n    alias_input_port: -", "70\n    alias_input_port: 0 #", "node 'node_1': alias_input_port is 0"),
    ("compute_cost: 58", "compute_cost: -58", "node 'node_1': compute_cost is -58: must be at least 0"),
    ("compute_cost: 58", 'op: "MatMul"', 'no field named "op": this is a GraphDef'),
    ("compute_cost: 58", 'name: "\\377"', "Couldn't parse string"),
    ("compute_cost: 47\n}\n", "compute_cost: 47\n", 'Expected "}"'),
    ("control_input: 0", "control_input: 3", "cycle: "),  # node_2 waits for node_0
]
BROKEN_STGS = [
    (STG, "", "the file is empty"),
    (STG, "# nothing\n", "only comments: a standard task graph begins with its number of tasks"),
    ("   3\n", "   3 1\n", "line 1: 2 numbers: must be one, the number of tasks"),
    ("   3\n", "   5\n", "line 1: 5 tasks, but 5 lines follow: must be 7, a dummy entry and a dummy exit"),
    ("   4     0     1     3\n", "", "3 tasks, but 4 lines follow: must be 5"),
    ("2     1     2", "3     1     2", "line 5: 5 numbers: must be a task's id, its time, its number of pred"),
    ("   2     2     1     0", "   2     2", "line 4: 2 numbers"),
    ("   2     2     1     0", "   1     2     1     0", "line 4: task 1 is already in line 3"),
    ("   2     2     1     0", "   2     2     1     9", "line 4: predecessor 9 is no task of the file"),
    ("   2     2     1     0", "   2    -2     1     0", "line 4: '-2': must be a whole number"),
    ("   2     2     1     0", "   2   2.5     1     0", "line 4: '2.5': must be a whole number"),
    ("   2     2     1     0", "   2  " + "9" * 40 + " 1 0", "must be a whole number of up to 18 digits"),
    ("   2     2     1     0", "   2  \xe9     1     0", "line 4: '\\xc3\\xa9': must be"),
    ("   1     4     1     0", "   1     4     1     3", "cycle: 'task1' -> 'task3' -> 'task1'"),
]
BROKEN = [
    *((COSTGRAPH, "broken.pbtxt", *case) for case in BROKEN_COSTGRAPHS),
    *((STG, "broken.stg", *case) for case in BROKEN_STGS),
]


@pytest.mark.parametrize(("text", "name", "old", "new", "fault"), BROKEN)
def test_errors_name_file_and_line(tmp_path: Path, text: str, name: str, old: str, new: str, fault: str) -> None:
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1))
    assert fault in file_refusal(tmp_path / name)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.pbtxt"
    path.write_bytes(b"node { name: '\xff' }")
    assert file_refusal(path) == f"{path}: not UTF-8 text: byte 14 is 0xff"


@given(st.sampled_from(FORMATS), st.floats(0, 1, exclude_max=True), st.sampled_from("09 -#x\n\0é{}<>[]:\"'"))
def test_one_wrong_character_is_one_line_or_another_graph(
    written: tuple[str, ComputationGraph, Callable[[bytes, str], ComputationGraph]], share: float, character: str
) -> None:
    text, _, parse = written
    place = int(share * len(text))
    message = refusal(lambda: parse((text[:place] + character + text[place + 1 :]).encode(), "here"))
    assert not message or message.startswith("here")
    assert message.isprintable()
