"""Standard task graphs: read, recognised by content, and refused in one line where they are broken."""

import gzip
from pathlib import Path

import pytest
from broken import file_refusal, refusal
from hypothesis import given
from hypothesis import strategies as st

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.known_optima import planted
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.stg import is_stg, parse_stg

# Three tasks between the dummies 0 and 4.
SMALL = """\
   3
   0     0     0
   1     4     1     0
   2     2     1     0   # comments end lines
   3     3     2     1     2
   4     0     1     3
# Part 2: facts about the graph
# CP Length : 7
"""
GRAPH = ComputationGraph(
    "small",
    (
        Op("task0"),
        Op("task1", runtime=4.0, after=("task0",)),
        Op("task2", runtime=2.0, after=("task0",)),
        Op("task3", runtime=3.0, after=("task1", "task2")),
        Op("task4", after=("task3",)),
    ),
)


def test_a_small_graph(tmp_path: Path) -> None:
    path = tmp_path / "small.stg"
    path.write_text(SMALL)
    assert read_graph(path) == GRAPH
    assert lower_bound(GRAPH, Problem("makespan", 2)) == 7


@pytest.mark.parametrize("name", ["small", "small.txt", "small.onnx", "small.gz"])
@pytest.mark.parametrize("before", ["", "# a comment\n\n", "\ufeff", "\r\n"])
def test_it_is_recognised_by_content(tmp_path: Path, name: str, before: str) -> None:
    data = (before + SMALL.replace("\n", "\r\n")).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read_graph(path).ops == GRAPH.ops


@pytest.mark.parametrize("head", [b"5", b"5\n", b"3 4 5\n", b"once\n0 0 0\n", b'{"a": 1}', b"\x08\x01", b"1\n2\n3\n"])
def test_other_files_are_not(head: bytes) -> None:
    assert not is_stg(head)


def text_of(graph: ComputationGraph) -> str:
    """A graph of single-edge dependencies between two dummies, as the format has it."""
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
def test_round_trip(num_ops: int, seed: int) -> None:
    instance = planted(num_ops, 2, seed)
    graph = parse_stg(text_of(instance.graph).encode(), "here/planted.stg.gz")
    assert graph.name == "planted"
    assert graph.arrays.num_tensors == 0
    assert graph.arrays.runtime.tolist() == [0, *instance.graph.arrays.runtime.tolist(), 0]
    pairs = {(source, target) for target, op in enumerate(graph.ops) for source in (int(x[4:]) for x in op.after)}
    inner = {(s - 1, t - 1) for s, t in pairs if s > 0 and t <= num_ops}
    assert inner == set(zip(*(ops.tolist() for ops in instance.graph.arrays.dependencies()), strict=True))
    assert lower_bound(graph, Problem("makespan", 2, "rendezvous")) == instance.makespan


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (SMALL, "", "the file is empty"),
        (SMALL, "# nothing\n", "only comments: a standard task graph begins with its number of tasks"),
        ("   3\n", "   3 1\n", "line 1: 2 numbers: must be one, the number of tasks"),
        ("   3\n", "   5\n", "line 1: says 5 tasks, but 5 lines follow: must be 7, a dummy entry and a dummy exit"),
        ("   4     0     1     3\n", "", "says 3 tasks, but 4 lines follow: must be 5"),
        ("2     1     2", "3     1     2", "line 5: 5 numbers: must be a task's id, its time, its number of pred"),
        ("   2     2     1     0", "   2     2", "line 4: 2 numbers"),
        ("   2     2     1     0", "   1     2     1     0", "line 4: task 1 stands in line 3 already"),
        ("   2     2     1     0", "   2     2     1     9", "line 4: predecessor 9 is no task of the file"),
        ("   2     2     1     0", "   2    -2     1     0", "line 4: '-2': must be a whole number"),
        ("   2     2     1     0", "   2   2.5     1     0", "line 4: '2.5': must be a whole number"),
        ("   2     2     1     0", "   2  " + "9" * 40 + " 1 0", "must be a whole number of up to 18 digits"),
        ("   2     2     1     0", "   2  \xe9     1     0", "line 4: '\\xc3\\xa9': must be"),
        ("   1     4     1     0", "   1     4     1     3", "cycle: 'task1' -> 'task3' -> 'task1'"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "broken.stg"
    path.write_text(SMALL.replace(old, new, 1))
    assert says in file_refusal(path)


@given(st.integers(0, len(SMALL) - 1), st.sampled_from("09 -#x\n\0é"))
def test_one_wrong_character_is_one_line_or_another_graph(place: int, character: str) -> None:
    text = SMALL[:place] + character + SMALL[place + 1 :]
    message = refusal(lambda: parse_stg(text.encode(), "here"))
    assert not message or message.startswith("here")
    assert message.isprintable()
