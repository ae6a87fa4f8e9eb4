"""The compiled lowering of costs under jax's transformations, and its limits."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import PROBLEMS, SIZES, random_decisions, random_graphs
from jax import lax

from graphrl.compiled import custom_call
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.evaluate import DeviceCosts, evaluate
from graphrl.errors import GraphrlError
from graphrl.graphs.padding import PaddedGraph, pad_batch

PROBLEM = DeviceProblem.of(PROBLEMS[6])
TIMES, GRAPHS, LANES = 3, 4, 5

Costs = Callable[[PaddedGraph, Decisions], DeviceCosts]
costs = functools.partial(evaluate, problem=PROBLEM)


def drawn() -> tuple[PaddedGraph, Decisions, DeviceCosts]:
    """Graphs, `TIMES` decisions of each (a leading axis), and their costs, one call a time."""
    rng = np.random.default_rng(0)
    graphs = pad_batch(random_graphs(rng, GRAPHS), SIZES)
    each = [random_decisions(rng, GRAPHS, LANES, PROBLEM.devices) for _ in range(TIMES)]
    by_rows = jax.jit(functools.partial(costs, form="rows"))
    stacked = [jax.tree.map(lambda *x: np.stack(x), *trees) for trees in (each, [by_rows(graphs, x) for x in each])]
    return graphs, stacked[0], stacked[1]


def same(got: DeviceCosts, wanted: DeviceCosts) -> None:
    """Compares all but events, whose idle steps differ."""
    for name in ("makespan", "peak_memory", "end"):
        np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))


def looped(graphs: PaddedGraph, decisions: Decisions) -> DeviceCosts:
    return lax.scan(lambda _, x: (None, costs(graphs, x)), None, decisions)[1]


def twice(graphs: PaddedGraph, decisions: Decisions) -> DeviceCosts:
    """One graph a call: an axis of times around an axis of graphs."""
    one = jax.tree.map(lambda x: x[:, None], graphs)

    def of_graph(graph: PaddedGraph, own: Decisions) -> DeviceCosts:
        return costs(graph, jax.tree.map(lambda x: x[..., None, :], own))

    return jax.vmap(jax.vmap(of_graph, (0, -2), -2), (None, 0))(one, decisions)


def sharded(graphs: PaddedGraph, decisions: Decisions) -> DeviceCosts:
    mesh = jax.make_mesh((2,), ("graphs",), axis_types=(jax.sharding.AxisType.Auto,))
    last = jax.P(None, None, "graphs")
    specs = Decisions(last, last, jax.P(None, None, None, "graphs"))  # type: ignore[arg-type]
    out = DeviceCosts(jax.P(None, "graphs"), last, last, last)  # type: ignore[arg-type]
    split = jax.shard_map(
        jax.vmap(costs, (None, 0)), mesh=mesh, in_specs=(jax.P("graphs"), specs), out_specs=out, check_vma=False
    )
    return split(graphs, decisions)


@pytest.mark.parametrize("transformed", [jax.vmap(costs, (None, 0)), looped, twice, sharded])
def test_it_is_the_same_under_transformations(transformed: Costs) -> None:
    graphs, decisions, wanted = drawn()
    program = jax.jit(transformed).lower(graphs, decisions)
    assert "graphrl_costs" in program.as_text()
    got = jax.device_get(program.compile()(graphs, decisions))
    if transformed is twice:  # [times, ..., graphs, 1, lanes]
        got = jax.tree.map(lambda x: np.squeeze(x, -3 if x.ndim > 3 else -2), got)
    same(got, wanted)


def test_decisions_out_of_range_are_moved_into_it() -> None:
    graphs, decisions, _ = drawn()
    one = jax.tree.map(lambda x: x[0].copy(), decisions)
    wild = Decisions(one.placement * 7 - 9, one.op_keys * 4 - 2, one.transfer_keys * jnp.nan)
    tame = Decisions(
        jnp.clip(wild.placement, 0, PROBLEM.devices - 1),
        jnp.clip(wild.op_keys, 0, np.nextafter(np.float32(1), 0)),
        jnp.zeros_like(wild.transfer_keys),
    )
    same(jax.jit(costs)(graphs, wild), jax.jit(costs)(graphs, tame))


def test_other_types_are_converted_and_other_shapes_refused() -> None:
    graphs, decisions, wanted = drawn()
    one = jax.tree.map(lambda x: x[0], decisions)
    narrow = Decisions(one.placement.astype(jnp.int8), one.op_keys, one.transfer_keys)
    host = jax.jit(functools.partial(costs, form="host"))
    np.testing.assert_array_equal(host(graphs, narrow).makespan, wanted.makespan[0])
    first = jax.tree.map(lambda x: x[:1], graphs)
    with pytest.raises(ValueError, match=r"an operand of compiled code has shape \(1,\): must be \(4,\)"):
        host(first, one)


def test_without_orders_costs_are_the_same() -> None:
    graphs, decisions, wanted = drawn()
    got = jax.jit(functools.partial(costs, orders=False))(graphs, jax.tree.map(lambda x: x[0], decisions))
    np.testing.assert_array_equal(got.makespan, wanted.makespan[0])
    np.testing.assert_array_equal(got.peak_memory, wanted.peak_memory[0])


def test_many_items_on_several_threads() -> None:
    """A batch large enough for other threads of XLA's pool."""
    graphs, decisions, wanted = drawn()
    many = jax.tree.map(lambda x: jnp.tile(x[0], 300), decisions)
    got = jax.jit(costs)(graphs, many)
    np.testing.assert_array_equal(got.makespan, np.tile(wanted.makespan[0], 300))
    np.testing.assert_array_equal(got.peak_memory, np.tile(wanted.peak_memory[0], 300))


def test_gradients_are_zero() -> None:
    graphs, decisions, _ = drawn()
    one = jax.tree.map(lambda x: x[0], decisions)

    def total(keys: jax.Array) -> jax.Array:
        return costs(graphs, Decisions(one.placement, keys, one.transfer_keys)).makespan.sum()

    assert not jax.grad(total)(one.op_keys).any()


@pytest.mark.parametrize("setting", ["jax", "numba"])
def test_the_environment_chooses(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHRL_LOWERING", setting)
    if setting == "jax":
        assert not custom_call.is_compiled()
    else:
        with pytest.raises(GraphrlError, match=r"GRAPHRL_LOWERING is 'numba': must be auto or jax"):
            custom_call.is_compiled()
