"""CostGraphDef as text: read, recognised by content, and refused in one line where it is broken."""

import gzip
from pathlib import Path

import pytest
from broken import file_refusal, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.costgraph import parse_costgraph

# In the manner of the released data: a source without id, one op after it, and ops that read its tensors.
SMALL = """\
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
GRAPH = ComputationGraph(
    "small",
    (
        Op("_SOURCE"),
        Op("node_0", after=("_SOURCE",)),
        Op("node_1", runtime=58e-6, outputs=(Tensor("node_1:0", 70), Tensor("node_1:1", 52)), after=("node_0",)),
        Op("node_2", runtime=47e-6, inputs=("node_1:1",), outputs=(Tensor("node_2:0", 55),), after=("node_0",)),
    ),
)


def test_a_small_graph(tmp_path: Path) -> None:
    path = tmp_path / "small.pbtxt"
    path.write_text(SMALL)
    assert read_graph(path) == GRAPH


@pytest.mark.parametrize("name", ["small", "small.txt", "small.json", "small.gz"])
@pytest.mark.parametrize("before", ["", "# proto-file: x\n\n", "\ufeff"])
def test_it_is_recognised_by_content(tmp_path: Path, name: str, before: str) -> None:
    data = (before + SMALL).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read_graph(path).ops == GRAPH.ops


def test_every_field_and_way_to_write_it() -> None:
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


def text_of(graph: ComputationGraph) -> str:
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
def test_round_trip(graph: ComputationGraph) -> None:
    read = parse_costgraph(text_of(graph).encode(), "x")
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


BROKEN = [
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
    (
        "70\n    alias_input_port: -1",
        "70\n    alias_input_port: 0",
        "node 'node_1': alias_input_port is 0",
    ),
    ("compute_cost: 58", "compute_cost: -58", "node 'node_1': compute_cost is -58: must be at least 0"),
    ("compute_cost: 58", 'op: "MatMul"', 'no field named "op": this is a GraphDef'),
    ("compute_cost: 58", 'name: "\\377"', "Couldn't parse string"),
    ("compute_cost: 47\n}\n", "compute_cost: 47\n", 'Expected "}"'),
    ("control_input: 0", "control_input: 3", "cycle: "),
]


@pytest.mark.parametrize(("old", "new", "says"), BROKEN)
def test_errors_name_file_and_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in SMALL
    text = SMALL.replace(old, new, 1)
    if says == "cycle: ":
        text = text.replace("control_input: 1\n  compute_cost: 58", "control_input: 1\n control_input: 1")
    path = tmp_path / "broken.pbtxt"
    path.write_text(text)
    assert says in file_refusal(path)
    path.write_bytes(b"node { name: '\xff' }")
    assert file_refusal(path) == f"{path}: not UTF-8 text: byte 14 is 0xff"


@given(st.integers(0, len(SMALL) - 1), st.sampled_from("09 -#x\n\0é{}<>[]:\"'"))
def test_one_wrong_character_is_one_line_or_another_graph(place: int, character: str) -> None:
    text = SMALL[:place] + character + SMALL[place + 1 :]
    message = refusal(lambda: parse_costgraph(text.encode(), "here"))
    assert not message or message.startswith("here")
    assert message.isprintable()
