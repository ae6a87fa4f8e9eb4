"""The family `kinds`: valid graphs of every structure, on the promised scale, and none of a kind that is held out."""

from collections import Counter

import numpy as np
import pytest

from graphrl.errors import ProblemError
from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.families import FAMILIES, sample
from graphrl.graphs.datasets.kinds import BANDWIDTH, HELD_OUT, LATENCY, LEAST_OPS, RUNTIMES, SHARES, kinds
from graphrl.graphs.datasets.kinds.programs import PROGRAMS, coarsened, load_program
from graphrl.graphs.datasets.kinds.structures import STRUCTURES, Structure, mirrored
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph

SIZES = (LEAST_OPS, 11, 37, 200)


def transfer_ratio(graph: ComputationGraph) -> float:
    """The mean tensor's transfer time over the link of the family, in mean run times of an op."""
    a = graph.arrays
    return float((LATENCY + a.tensor_bytes.mean() / BANDWIDTH) / a.runtime.mean())


def largest_over_median(graph: ComputationGraph) -> float:
    """The ratio of the longest run time to the median of those above 0."""
    seconds = graph.arrays.runtime[graph.arrays.runtime > 0]
    return float(seconds.max() / np.median(seconds))


def is_series_parallel(source: np.ndarray, target: np.ndarray, n: int) -> bool:
    """True if the edges reduce to one by merging parallel ones, and those into and out of an op that has one of each.

    First the graph gets a source before all ops without predecessors, and a sink after all without successors.
    """
    heads, tails = (np.setdiff1d(np.arange(n), side).tolist() for side in (target, source))
    pairs = zip(source.tolist(), target.tolist(), strict=True)
    edges = {*pairs, *((n, op) for op in heads), *((op, n + 1) for op in tails)}
    while True:
        into: dict[int, list[int]] = {}
        out: dict[int, list[int]] = {}
        for a, b in edges:
            out.setdefault(a, []).append(b)
            into.setdefault(b, []).append(a)
        middle = next((op for op in range(n) if len(into.get(op, [])) == len(out.get(op, [])) == 1), None)
        if middle is None:
            return edges == {(n, n + 1)}
        edges -= {(into[middle][0], middle), (middle, out[middle][0])}
        edges.add((into[middle][0], out[middle][0]))


def edges_of(structure: Structure) -> tuple[np.ndarray, np.ndarray]:
    """The ops of all edges, by data and control, without duplicates."""
    source = np.concatenate([structure.producer[structure.use_tensor], structure.control_source])
    target = np.concatenate([structure.use_op, structure.control_target])
    pairs = np.unique(np.stack([source, target], 1), axis=0)
    return pairs[:, 0], pairs[:, 1]


@pytest.mark.parametrize("structure", SHARES)
@pytest.mark.parametrize("num_ops", SIZES)
def test_every_structure_is_valid_and_on_the_scale(structure: str, num_ops: int) -> None:
    for seed in range(5):
        graph = kinds(num_ops, seed, structure)
        a = graph.arrays
        assert a.num_ops == num_ops
        assert a.topological.tolist() == list(range(num_ops))  # listed in a topological order
        assert len(a.use_op) == sum(len(op.inputs) for op in graph.ops)  # no use twice
        assert len(a.use_op) + len(a.control_source) <= 13 * num_ops
        assert 0.0099 <= transfer_ratio(graph) <= 10.1
        assert LATENCY / 0.51 <= LATENCY + a.tensor_bytes.mean() / BANDWIDTH <= LATENCY / 0.0099
        assert min(map(int, a.tensor_bytes)) >= 1
        assert a.runtime.sum() > 0
        assert kinds(num_ops, seed, structure) == graph
        assert kinds(num_ops, seed + 8, structure) != graph


def test_a_seed_draws_structure_size_and_costs() -> None:
    drawn = [kinds(40, seed) for seed in range(400)]
    structures = Counter(
        graph.name.removeprefix("kinds-").removesuffix(f"-40-{seed}") for seed, graph in enumerate(drawn)
    )
    for name, (share, _) in SHARES.items():
        assert abs(structures[name] / 400 - share) < 4 * (share * (1 - share) / 400) ** 0.5
        seed, graph = next((i, graph) for i, graph in enumerate(drawn) if graph.name.startswith(f"kinds-{name}-"))
        assert kinds(40, seed, name) == graph
        assert sample(f"kinds-{name}", 40, seed)[0] == graph
    ratios = np.log10([transfer_ratio(graph) for graph in drawn])
    assert np.abs(np.quantile(ratios, [0.25, 0.5, 0.75]) - [-1.25, -0.5, 0.25]).max() < 0.3  # log-uniform
    arrays = [graph.arrays for graph in drawn]
    for fraction in (
        np.mean([(a.runtime == 0).any() for a in arrays]),
        np.mean([(a.weight_bytes > 0).any() for a in arrays]),
        np.mean([(a.workspace_bytes > 0).any() for a in arrays]),
        np.mean([len(a.control_source) > 0 for a in arrays]),
        np.mean([a.kept.any() for a in arrays]),
    ):
        assert 0.15 < fraction < 0.75
    sizes = np.array([len(kinds(None, seed).ops) for seed in range(40)])
    assert sizes.min() >= 30
    assert sizes.max() <= 2000
    assert 120 < np.median(sizes) < 500


def test_sets_by_name() -> None:
    graphs = load_graphs(["kinds:60x5@7", "kinds-recurrent:30x2"])
    assert graphs == [*(kinds(60, seed) for seed in range(7, 12)), *(kinds(30, seed, "recurrent") for seed in range(2))]
    assert load_graphs(["kinds:@3"]) == [kinds(None, 3)]


def test_held_out_kinds_are_never_drawn() -> None:
    families = [name for name in HELD_OUT if not name.startswith(zoo.PREFIX)]
    assert set(families) <= FAMILIES.keys()
    assert not set(families) & SHARES.keys()
    held_out = {
        entry.family for name in HELD_OUT if name.startswith(zoo.PREFIX) for entry in zoo.select(name, zoo.DATA)
    }
    assert held_out == {family for family, split in zoo.SPLITS.items() if split != "train"}
    assert not held_out & {entry.family for entry in zoo.select(PROGRAMS, zoo.DATA)}


@pytest.mark.parametrize("num_ops", [LEAST_OPS, 25, 60])
def test_blocks_are_not_series_parallel(num_ops: int) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        assert not is_series_parallel(*edges_of(STRUCTURES["blocks"](num_ops, rng)), num_ops)
    tree = STRUCTURES["in-tree"](num_ops, np.random.default_rng(0))
    assert is_series_parallel(*edges_of(tree), num_ops)


def test_run_times_and_transfers_by_option() -> None:
    tail = {
        name: np.median([largest_over_median(kinds(150, seed, "random", name)) for seed in range(9)])
        for name in RUNTIMES
    }
    assert tail["constant"] == 1
    assert max(tail["uniform"], tail["normal"]) < 2.5
    assert tail["log-normal"] > 5
    assert min(tail["pareto"], tail["program"]) > 8
    graph = kinds(100, 1, transfer=0.5)
    assert transfer_ratio(graph) == pytest.approx(0.5, rel=1e-3)
    with_options = sample("kinds", 100, 1, {"structure": "layered", "runtime": "pareto", "transfer": 2.0})[0]
    assert with_options == kinds(100, 1, "layered", "pareto", 2.0)


def test_steps_of_a_recurrence_cost_the_same() -> None:
    structure = STRUCTURES["recurrent"](200, np.random.default_rng(3))
    repeated = len(structure.op_class) - len(set(structure.op_class.tolist()))
    assert repeated >= 100
    graph = kinds(200, 3, "recurrent", "log-normal")
    assert len(set(graph.arrays.runtime.tolist())) <= 110


@pytest.mark.parametrize("structure", ["random", "layered", "recurrent", "blocks"])
@pytest.mark.parametrize("num_ops", [20, 41])
def test_training_steps_mirror_the_forward_pass(structure: str, num_ops: int) -> None:
    rng = np.random.default_rng(5)
    n = -(-num_ops // 2)
    forward = STRUCTURES[structure](n, rng)
    step = mirrored(forward, num_ops, rng)
    source, target = edges_of(step)
    assert (source < target).all()
    assert target.max() == num_ops - 1
    assert len(step.op_class) == num_ops
    edges = set(zip(source.tolist(), target.tolist(), strict=True))
    for a, b in zip(*(ops.tolist() for ops in edges_of(forward)), strict=True):
        assert (a, b) in edges
        if 2 * n - 1 - a < num_ops:
            assert (2 * n - 1 - b, 2 * n - 1 - a) in edges
    first_backward = 2 * n - 1 - np.arange(n)
    ends = np.setdiff1d(np.arange(n), edges_of(forward)[0])
    assert all((int(op), int(first_backward[op])) in edges for op in ends if first_backward[op] < num_ops)


@pytest.mark.parametrize("name", ["lstm2/training/b2/hlo", "resnet50/training/b8/hlo"])
def test_coarse_programs_keep_their_totals(name: str) -> None:
    whole = load_program(name)
    a = zoo.load(name, folder=zoo.DATA).graph.arrays
    assert (whole.runtime.sum(), len(whole.use_op), len(whole.producer)) == (
        a.runtime.sum(),
        len(a.use_op),
        a.num_tensors,
    )
    program = coarsened(whole, a.num_ops // 3, np.random.default_rng(0))
    assert len(program.runtime) == a.num_ops // 3
    assert (program.producer[program.use_tensor] < program.use_op).all()
    assert (program.control_source < program.control_target).all()
    assert (np.diff(program.producer) >= 0).all()
    assert program.members.sum() == a.num_ops
    assert program.members.max() <= 10 * program.members.mean()
    assert np.isclose(a.runtime.sum(), program.runtime.sum())
    assert a.weight_bytes.sum() == program.weights.sum()
    assert a.workspace_bytes.max() == program.workspace.max()
    assert a.tensor_bytes[a.kept].sum() == program.bytes[program.kept].sum()
    assert 0.5 < len(program.use_op) / len(program.runtime) < 2 * len(a.use_op) / a.num_ops


def test_errors() -> None:
    for arguments, fault in (
        ((40, 0, "tree"), "unknown structure 'tree': known are random, layered, in-tree, out-tree, "),
        ((40, 0, None, "gamma"), "unknown runtime 'gamma'"),
        ((40, 0, None, None, 0.0), "transfer is 0.0: must be from 0.001 to 1000"),
        ((9, 0), "num_ops is 9: must be an integer of at least 10"),
        ((10**5, 0, "program"), "num_ops is 100000: must be at most 4640, the ops of the largest program of the zoo"),
        ((40, -1), "seed is -1"),
    ):
        with pytest.raises(ProblemError, match=fault):
            kinds(*arguments)
