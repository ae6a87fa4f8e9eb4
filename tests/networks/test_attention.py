"""Topoformer's attention, its ablations and the decoder of appendix B: padding and renumbering change nothing.

Probabilities of orders sum to 1: test_topoformer_orders.py.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import drawn

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.features import RELATIONS, TO_REDUCTION, padded_order_features, padded_relations, relations
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.networks import topological_attention
from graphrl.networks.base import NEVER, Network, network
from graphrl.networks.heads import AutoregressiveDecoder, Priorities, Stepwise, normalise, stepwise
from graphrl.networks.topological_attention import GRAPHS, EncoderName, HeadGroup, MaskedAttention, encoder


class Pairs(NamedTuple):
    """A network's observation of one graph."""

    nodes: jax.Array  # [n, F]
    relation: jax.Array  # [n, n] uint8
    mask: jax.Array  # [n] bool


def pairs(graph: ComputationGraph, ops: int | None = None) -> Pairs:
    """Inputs of a graph, padded to `ops`."""
    ops = len(graph.ops) if ops is None else ops
    real = np.arange(ops) < len(graph.ops)
    seen = Pairs(padded_order_features(graph, ops), padded_relations(graph, ops), real)  # type: ignore[arg-type]
    return jax.tree.map(jnp.asarray, seen)


def renumbered(seen: Pairs, order: np.ndarray) -> Pairs:
    """The same graph with op `order[i]` at place i."""
    return Pairs(seen.nodes[order], seen.relation[order][:, order], seen.mask[order])


GRAPH = layered(20, 3)


@functools.cache
def priorities(name: EncoderName, **settings: Any) -> Network:
    net = network(Priorities(encoder(name, **({"layers": 1, "width": 8, "head_width": 4} | settings)), 8))
    return Network(net.init, jax.jit(net.apply))


@functools.cache
def params(name: EncoderName, **settings: Any) -> Any:
    """Random parameters: `init` would take seconds to compile."""
    return drawn(jax.eval_shape(priorities(name, **settings).init, jax.random.key(0), pairs(GRAPH, 27)))


def test_the_graphs_of_topoformer_cover_every_pair_once() -> None:
    codes = [code for group in GRAPHS["topoformer"] for code in group]
    assert sorted(codes) == list(range(1, len(RELATIONS)))
    assert sorted(GRAPHS["transformer"][0]) == list(range(len(RELATIONS)))


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Softmax attention of one head over the pairs of `seen`, row by row."""
    out = np.zeros_like(v)
    for i, row in enumerate(seen):
        if row.any():
            scores = k[row] @ q[i] / np.sqrt(q.shape[1])
            weights = np.exp(scores - scores.max())
            out[i] = weights @ v[row] / weights.sum()
    return out


@pytest.mark.parametrize("tied", [False, True])
def test_heads_are_softmax_attention_over_their_graph(tied: bool) -> None:
    groups = (HeadGroup((1, 4), 2), HeadGroup((7,), 1), HeadGroup((3,), 3))
    module = MaskedAttention(groups, 4, tied=tied)
    relation = relations(GRAPH)
    nodes = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    variables = module.init(jax.random.key(0), jnp.asarray(nodes), jnp.asarray(relation))
    got = np.asarray(module.apply(variables, jnp.asarray(nodes), jnp.asarray(relation))).reshape(20, 6, 4)
    kernels = {name: np.asarray(part["kernel"]) for name, part in variables["params"].items()}
    assert kernels["query"].shape == (6, 3 if tied else 6, 4)
    own = [0, 1, 0, 0, 1, 2] if tied else range(6)
    for head, (slot, codes) in enumerate(zip(own, [(1, 4)] * 2 + [(7,)] + [(3,)] * 3, strict=True)):
        q, k, v = (nodes @ kernels[name][:, slot] for name in ("query", "key", "value"))
        np.testing.assert_allclose(got[:, head], plain(q, k, v, np.isin(relation, codes)), rtol=2e-4, atol=1e-5)


def test_additive_heads_are_those_of_the_graph_attention_network() -> None:
    module = MaskedAttention((HeadGroup((0, 1, 2), 2),), 4, "additive")
    relation = relations(GRAPH)
    nodes = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    variables = module.init(jax.random.key(0), jnp.asarray(nodes), jnp.asarray(relation))
    got = np.asarray(module.apply(variables, jnp.asarray(nodes), jnp.asarray(relation))).reshape(20, 2, 4)
    params = jax.tree.map(np.asarray, variables["params"])
    for head in range(2):
        v = nodes @ params["value"]["kernel"][:, head]
        scores = (v @ params["receiver"][head])[:, None] + (v @ params["sender"][head])
        weights = np.exp(np.where(scores > 0, scores, 0.2 * scores)) * np.isin(relation, (0, 1, 2))
        np.testing.assert_allclose(got[:, head], weights @ v / weights.sum(1, keepdims=True), rtol=2e-4, atol=1e-5)


def autodiff(scoring: str, relation: Any, bits: Any, left: Any, right: Any, values: Any) -> jax.Array:
    """One head by its definition, for JAX to differentiate."""
    scores = left @ right.T if scoring == "dot" else jnp.where(left + right.T > 0, 1.0, 0.2) * (left + right.T)
    allowed = jnp.asarray([[int(bits) >> int(code) & 1 for code in row] for row in relation], bool)
    weights = jax.nn.softmax(jnp.where(allowed, scores, -1e9), axis=1)
    return jnp.where(allowed.any(1, keepdims=True), weights @ values, 0.0)


@pytest.mark.parametrize("scoring", ["dot", "additive"])
def test_gradients_of_a_head_are_those_of_its_definition(scoring: Any) -> None:
    rng = np.random.default_rng(0)
    relation, bits, width = jnp.asarray(relations(GRAPH)), jnp.uint16(0b10), 4 if scoring == "dot" else 1
    shapes = [(20, width), (20, width), (20, 3), (20, 3)]
    left, right, values, cotangent = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
    results = []
    for head in (topological_attention._head, autodiff):
        one = functools.partial(head, scoring, np.asarray(relation) if head is autodiff else relation, bits)
        out, back = jax.vjp(one, left, right, values)
        results.append((out, *back(cotangent)))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_an_op_without_senders_gets_nothing_and_gradients_stay_finite_at_huge_scores() -> None:
    module = MaskedAttention((HeadGroup((1,), 1),), 4)
    relation = jnp.asarray(relations(ComputationGraph("apart", (Op("a"), Op("b")))))
    nodes = jnp.asarray(np.random.default_rng(0).standard_normal((2, 6)), jnp.float32)
    variables = module.init(jax.random.key(0), nodes, relation)
    assert not np.asarray(module.apply(variables, nodes, relation)).any()

    slope_of = jax.jit(jax.grad(lambda v, seen: jnp.square(jnp.asarray(module.apply(v, nodes, seen))).sum()))
    for size in (1e-3, 1e3, -1e3):
        some = jax.tree.map(lambda x, size=size: jnp.full_like(x, size), variables)
        for seen in (relation, jnp.ones_like(relation)):
            assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slope_of(some, seen)))


@pytest.mark.parametrize("name", ["gat", "topoformer"])
def test_padding_and_numbering_change_no_priority(name: EncoderName) -> None:
    apply = priorities(name).apply
    plainly = np.asarray(apply(params(name), pairs(GRAPH)))
    assert plainly.shape == (20,)
    assert plainly.mean() == pytest.approx(0, abs=1e-4)
    assert plainly.std() == pytest.approx(5, rel=1e-4)  # eq. 17
    padded = np.asarray(apply(params(name), pairs(GRAPH, 27)))
    np.testing.assert_allclose(padded[:20], plainly, rtol=1e-3, atol=1e-4)
    assert np.isfinite(padded).all()
    order = np.random.default_rng(0).permutation(27)  # padding ops change, too
    mixed = np.asarray(apply(params(name), renumbered(pairs(GRAPH, 27), order)))
    np.testing.assert_allclose(mixed, padded[order], rtol=1e-3, atol=1e-4)


CHAIN = ComputationGraph(
    "chain", tuple(Op(f"op{i}", inputs=(f"t{i - 1}",) if i else (), outputs=(Tensor(f"t{i}", 1),)) for i in range(4))
)


@pytest.mark.parametrize(
    ("name", "senders"),
    [
        ("mlp", ["1000", "0100", "0010", "0001"]),
        ("gat", ["1000", "1100", "0110", "0011"]),
        ("gat-both", ["1100", "1110", "0111", "0011"]),
        ("topoformer-dag", ["1100", "1110", "0111", "0011"]),
        ("topoformer", ["1111"] * 4),
        ("transformer", ["1111"] * 4),
    ],
)
def test_one_layer_lets_ops_see_what_the_encoder_is_named_for(name: EncoderName, senders: list[str]) -> None:
    module, seen = encoder(name, layers=1, width=8, head_width=4), pairs(CHAIN)
    variables = {"params": params(name)["encoder"]}
    changed = jnp.stack([seen.nodes, *(seen.nodes.at[sender].add(1.0) for sender in range(4))])
    outputs = jax.jit(jax.vmap(lambda nodes: module.apply(variables, seen._replace(nodes=nodes))))(changed)
    influence = np.abs(np.asarray(outputs[1:] - outputs[:1])).max(2).T > 1e-4  # [receiver, sender]
    assert ["".join(str(int(one)) for one in row) for row in influence] == senders


def test_a_graph_without_heads_is_not_seen() -> None:
    module = encoder("topoformer", layers=1, width=8, head_width=4, heads=(1, 0, 0, 0, 0, 0, 0))
    seen = pairs(CHAIN)
    variables = module.init(jax.random.key(0), seen)
    assert variables["params"]["attention_0"]["query"]["kernel"].shape == (8, 1, 4)
    backwards = seen._replace(relation=jnp.where(seen.relation == TO_REDUCTION, jnp.uint8(7), seen.relation))
    np.testing.assert_array_equal(module.apply(variables, seen), module.apply(variables, backwards))


def test_bfloat16_is_close() -> None:
    seen = pairs(GRAPH)
    exact = np.asarray(priorities("topoformer").apply(params("topoformer"), seen))
    rough = np.asarray(priorities("topoformer", dtype="bfloat16").apply(params("topoformer"), seen))
    assert rough.dtype == np.float32
    assert np.abs(rough - exact).mean() < 0.5  # of a standard deviation of 5


def test_gradients_in_bfloat16_are_close() -> None:
    nodes, relation = pairs(GRAPH).nodes, pairs(GRAPH).relation

    def slopes(dtype: str) -> np.ndarray:
        module = MaskedAttention((HeadGroup((3,), 1), HeadGroup((7,), 1)), 4, dtype=jnp.dtype(dtype))
        some = params("topoformer")["encoder"]["node_in"]["kernel"][:, :4]
        weights = {"params": {name: {"kernel": jnp.stack([some, -some], 1)} for name in ("query", "key", "value")}}
        tree = jax.grad(lambda p: jnp.square(jnp.asarray(module.apply(p, nodes, relation))[:7]).sum())(weights)
        return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])

    exact, rough = slopes("float32"), slopes("bfloat16")
    assert np.corrcoef(exact, rough)[0, 1] > 0.99


def test_networks_are_mapped_over_graphs_and_compiled_once() -> None:
    apply = priorities("topoformer").apply
    graphs = [pairs(layered(ops, ops), 20) for ops in (12, 17, 20)]
    stacked: Pairs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    real = np.asarray(stacked.mask)
    every = jax.jit(chex.assert_max_traces(lambda p, seen: jax.vmap(apply, (None, 0))(p, seen), n=1))
    together = every(params("topoformer"), stacked)
    every(params("topoformer"), stacked)
    alone = np.stack([np.asarray(apply(params("topoformer"), one)) for one in graphs])
    np.testing.assert_allclose(np.asarray(together)[real], alone[real], rtol=1e-3, atol=1e-4)


def test_normalised_priorities_of_equal_ops_are_zero_with_finite_gradients() -> None:
    mask = jnp.asarray([True, True, False])
    value, slope = jax.vjp(lambda y: normalise(y, mask), jnp.asarray([3.0, 3.0, 9.0]))
    np.testing.assert_array_equal(value, [0, 0, 0])
    assert bool(jnp.isfinite(slope(jnp.asarray([1.0, 0.0, 0.0]))[0]).all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: encoder("gcn"), "encoder is 'gcn': must be one of topoformer, topo"),  # type: ignore[arg-type]
        (lambda: encoder("gat", heads=(1, 2)), r"heads are \(1, 2\): must be one number or 1, one for each graph"),
        (lambda: HeadGroup((8,), 1), r"codes are \(8,\): must be one or more of 0 to 7"),
        (lambda: HeadGroup((1,), -1), "heads is -1: must be at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()


LAYERED = layered(12, 0)
READY = np.isin(np.arange(14), [4, 6, 9])


@functools.cache
def net() -> Stepwise:
    module = AutoregressiveDecoder(encoder("topoformer", layers=1, width=8, head_width=4), 8, heads=2)
    decoder = stepwise(module)
    return Stepwise(decoder.init, jax.jit(decoder.prepare), jax.jit(decoder.step))


@functools.cache
def decoder_params() -> Any:
    return drawn(jax.eval_shape(net().init, jax.random.key(0), pairs(LAYERED)))


def logits(seen: Pairs, ready: np.ndarray, *ends: int) -> np.ndarray:
    """Logits of one step, after an order with these first and last ops."""
    prepared = net().prepare(decoder_params(), seen)
    return np.asarray(net().step(decoder_params(), prepared, jnp.asarray(ends, jnp.int32), jnp.asarray(ready)))


def test_the_first_and_the_last_op_and_readiness_matter_and_neither_padding_nor_numbering_does() -> None:
    seen, order = pairs(LAYERED, 14), np.random.default_rng(0).permutation(14)
    place = np.argsort(order)
    base = logits(seen, READY, 0, 3)
    assert (base[~READY] == NEVER).all()
    assert (np.abs(base[READY]) <= 10).all()
    for ends in ((0, 2), (1, 3), (14, 14)):
        assert not np.allclose(base[READY], logits(seen, READY, *ends)[READY])
    np.testing.assert_allclose(logits(pairs(LAYERED), READY[:12], 0, 3), base[:12], rtol=1e-4, atol=1e-4)
    mixed = logits(renumbered(seen, order), READY[order], place[0], place[3])
    np.testing.assert_allclose(mixed, base[order], rtol=1e-4, atol=1e-4)


def test_gradients_reach_every_parameter() -> None:
    seen, ready = pairs(LAYERED, 14), jnp.asarray(READY)

    @jax.jit
    @jax.grad
    def slope(some: Any) -> jax.Array:
        prepared = net().prepare(some, seen)
        steps = [net().step(some, prepared, jnp.asarray(ends, jnp.int32), ready) for ends in ((14, 14), (0, 0))]
        return sum((jax.nn.log_softmax(logits)[4] for logits in steps), jnp.float32(0))

    for path, leaf in jax.tree_util.tree_leaves_with_path(slope(decoder_params())):
        assert bool(jnp.isfinite(leaf).all())
        assert bool((leaf != 0).any()) or "of_graph" in str(path), path


def test_heads_must_divide_the_width() -> None:
    module = AutoregressiveDecoder(encoder("mlp", layers=1, width=8), 8, heads=3)
    with pytest.raises(ProblemError, match="heads is 3: must divide the width, 8"):
        jax.eval_shape(module.init, jax.random.key(0), pairs(LAYERED))
