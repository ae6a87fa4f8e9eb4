"""`graphrl.checkpoint` of functions that several devices share: shards, collectives, budgets of one device."""

import functools
import json
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from processes import run_python

import graphrl
from graphrl.errors import GraphrlError
from graphrl.graphs.readers.jaxpr.work import inner_jaxprs
from graphrl.graphs.roofline import INTERCONNECTS, LINKS, Interconnect, find_link
from graphrl.xla import topology
from graphrl.xla.checkpoint import settings
from graphrl.xla.checkpoint.collectives import link_seconds, one_device
from graphrl.xla.checkpoint.primitives import COLLECTIVE
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.settings import Settings, UnmetError
from graphrl.xla.checkpoint.shards import Shards, Spec
from graphrl.xla.topology import concrete_mesh, missing

AUTO = AxisType.Auto
MESH = AbstractMesh((8,), ("data",), axis_types=(AUTO,))
BOTH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AUTO, AUTO))
LINK = Interconnect(1e-6, 1e9, "a test")
LAYERS, WIDTH, N = 6, 512, 4096


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def loss(weights: Any, x: jax.Array) -> jax.Array:
    for up, down in weights:
        x = x + jax.nn.gelu(x @ up) @ down
    return jnp.square(x).mean()


ARGS = [(shape(WIDTH, 4 * WIDTH), shape(4 * WIDTH, WIDTH))] * LAYERS, shape(N, WIDTH)
SPLIT: dict[str, Any] = {"in_shardings": (P("data"), P("data")), "mesh": MESH, "chip": "h200", "cache": False}


def split(function: Callable[..., Any], *args: Any, mesh: Any = MESH, specs: Any, link: Any = LINK) -> Any:
    """The jaxpr of a function on one device, and how its results are split."""
    closed = jax.make_jaxpr(function)(*args)
    options = Settings(slowdown=0.1, mesh=mesh, in_shardings=specs, link=link)
    layout = options.layout(closed.in_avals)
    assert layout is not None
    arguments = options.arguments(layout, jax.tree.structure((args, {})), closed.in_avals)
    shards = Shards(closed, layout, arguments)
    return one_device(shards, closed), shards.results


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn.params).values():
            yield from equations(getattr(inner, "jaxpr", inner))


def collectives(closed: Any) -> Counter[Any]:
    found = (eqn for eqn in equations(closed.jaxpr) if eqn.primitive is COLLECTIVE)
    return Counter((eqn.params["kind"], *eqn.params["axes"], *eqn.outvars[0].aval.shape) for eqn in found)


def test_steps_on_eight_devices_have_the_values_of_one(tmp_path: Path) -> None:
    done = run_python(tmp_path, str(Path(__file__).parents[2] / "helpers" / "sharded_steps.py"))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert len(figures) == 6
    for name, each in figures.items():
        assert each["difference"] <= 1e-6, name
        assert each["segments"] >= 1, name
        assert each["agreed"] > 0.98, name  # of the bytes are split as XLA splits them


X, Y = P("data"), P(None, "data")
D: Spec = (("data",), ())
CASES: list[tuple[Any, tuple[Any, ...], tuple[Any, ...], Any]] = [
    (lambda x, w: x @ w, (shape(16, 32), shape(32, 64)), (X, P()), D),
    (lambda x, w: x @ w, (shape(16, 32), shape(32, 64)), (Y, X), ((), ())),
    (lambda x: x.reshape(16, 4, 8), (shape(16, 32),), (X,), (*D, ())),
    (lambda x: x.reshape(16, 8, 4), (shape(16, 32),), (Y,), ((), ("data",), ())),
    (lambda x: x.reshape(512), (shape(16, 32),), (X,), (("data",),)),
    (lambda x: x.reshape(0, 4), (shape(16, 0),), (X,), ((), ())),
    (lambda x: x.T, (shape(16, 32),), (X,), ((), ("data",))),
    (lambda x: x.sum(0), (shape(16, 32),), (X,), ((),)),
    (lambda x: x.sum(1), (shape(16, 32),), (X,), (("data",),)),
    (lambda x: x.argmax(1), (shape(16, 32),), (X,), (("data",),)),
    (lambda x: x[:, None], (shape(16, 32),), (X,), (("data",), (), ())),
    (lambda x: x - x.mean(1, keepdims=True), (shape(16, 32),), (X,), D),
    (lambda x: jnp.sort(x, 1), (shape(16, 32),), (X,), D),
    (lambda x: jnp.cumsum(x, 1), (shape(16, 32),), (X,), D),
    (lambda x: jax.lax.top_k(x, 2)[0], (shape(16, 32),), (X,), D),
    (lambda x: x[:, 3:7], (shape(16, 32),), (X,), D),
    (lambda x: jnp.concatenate([x, x], 1), (shape(16, 32),), (X,), D),
    (lambda x: jnp.concatenate([x, x], 0), (shape(16, 32),), (X,), ((), ())),
    (lambda t, i: t[i], (shape(64, 8), shape(16, dtype=int)), (P(), X), D),
    (lambda t, i: t[i], (shape(64, 8), shape(16, dtype=int)), (Y, P()), ((), ("data",))),
    (lambda i, u: jnp.zeros((64, 8)).at[i].add(u), (shape(16, dtype=int), shape(16, 8)), (X, X), ((), ())),
    (lambda x: jax.lax.scan(lambda c, y: (c + y, c), x[0], x)[1], (shape(4, 16),), (Y,), ((), ("data",))),
    (lambda x: jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), x), (shape(16, 32),), (X,), D),
    (lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (shape(16, 32),), (X,), D),
    (lambda x: jax.jit(jnp.sin)(x), (shape(16, 32),), (X,), D),
    (lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P())), (shape(16, 32),), (X,), ((), ())),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_shardings_spread_through_equations(case: int) -> None:
    function, args, specs, expected = CASES[case]
    one, results = split(function, *args, specs=specs)
    assert results == (expected,)
    whole = jax.eval_shape(function, *args).shape
    assert list(one.jaxpr.outvars[0].aval.shape) == [
        n // (8 if axes else 1) for n, axes in zip(whole, expected, strict=True)
    ]


def test_convolutions_split_batch_and_features() -> None:
    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    args = shape(16, 8, 8, 32), shape(3, 3, 32, 64)
    assert split(convolve, *args, specs=(P("data"), P()))[1] == ((("data",), (), (), ()),)
    one, results = split(convolve, *args, mesh=BOTH, specs=(P("data"), P(None, None, None, "model")))
    assert results == ((("data",), (), (), ("model",)),)
    assert not collectives(one)
    one, _ = split(convolve, *args, specs=(P(None, None, None, "data"), P(None, None, "data")))
    assert collectives(one) == {("psum", "data", 16, 8, 8, 64): 1}


def test_weights_are_gathered_and_gradients_scattered() -> None:
    one, _ = split(lambda x, w: x @ w, shape(64, 32), shape(32, 16), specs=(P("data"), P("data")))
    assert collectives(one) == {("all_gather", "data", 32, 16): 1}
    (gather,) = [eqn for eqn in one.jaxpr.eqns if eqn.primitive is COLLECTIVE]
    assert gather.params["seconds"] == pytest.approx(1e-6 + 7 / 8 * 32 * 16 * 4 / 1e9)
    (product,) = [eqn for eqn in one.jaxpr.eqns if eqn.primitive.name == "dot_general"]
    assert [atom.aval.shape for atom in (*product.invars, *product.outvars)] == [(8, 32), (32, 16), (8, 16)]


def test_products_over_split_features_are_summed() -> None:
    def block(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.tanh(x @ up) @ down

    args = shape(64, 32), shape(32, 128), shape(128, 32)
    one, results = split(block, *args, mesh=BOTH, specs=(P("data"), P(None, "model"), P("model")))
    assert results == ((("data",), ()),)
    assert collectives(one) == {("psum", "model", 32, 32): 1}


def test_bytes_and_seconds_are_those_of_one_device() -> None:
    whole = graphrl.checkpoint(loss, slowdown=0.2, seconds=0.5, chip="h200", cache=False).report(*ARGS)
    part = graphrl.checkpoint(loss, slowdown=0.2, seconds=0.5, **SPLIT).report(*ARGS)
    assert (whole.devices, part.devices) == (1, 8)
    assert part.argument_bytes * 8 == whole.argument_bytes
    weights = LAYERS * 2 * 4 * WIDTH * WIDTH * 4  # all are gathered
    assert part.plain.kept_bytes == pytest.approx(whole.plain.kept_bytes / 8 + weights, rel=0.05)
    assert "shared by 8 devices: all figures are one device's" in str(part)
    assert part.slowdown <= 0.2


def kept_weights(link: Any) -> int:
    """Number of gathered weights that a plan keeps, of `2 LAYERS`."""
    report = graphrl.checkpoint(loss, budget=0.5, seconds=1, link=link, **SPLIT).report(*ARGS)
    kinds = [value.value for value in report.values if value.what == "kept"]
    return sum(kinds.count(f"float32[{a},{b}]") for a, b in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)))


def test_weights_that_are_dear_to_gather_are_kept() -> None:
    slow, fast = kept_weights(Interconnect(0, 1e8, "slow")), kept_weights({"data": Interconnect(0, 1e15, "fast")})
    assert slow > fast
    assert slow >= LAYERS


def test_collectives_within_shard_map_take_seconds() -> None:
    def summed(x: jax.Array) -> jax.Array:
        return jax.lax.psum(jnp.sin(x), "data")

    def on_shards(x: jax.Array) -> jax.Array:
        own = graphrl.checkpoint(lambda x: summed(x).sum(), slowdown=0.1, seconds=0.1, cache=False, link=LINK)
        value = own(x)
        reports.append(own.report())
        return value

    reports: list[Any] = []
    mesh = AbstractMesh((8,), ("data",))
    jax.eval_shape(jax.shard_map(on_shards, mesh=mesh, in_specs=P("data"), out_specs=P()), shape(64, 1000))
    assert reports[0].devices == 8
    assert reports[0].plain.seconds > 2 * 7 / 8 * 8 * 1000 * 4 / LINK.bandwidth


def test_explicit_axes_need_no_options() -> None:
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.sharding.use_abstract_mesh(mesh):
        rows = NamedSharding(mesh, P("data"))
        args = [jax.ShapeDtypeStruct((count, 8), jnp.float32, sharding=rows) for count in (64, 8)]
        own = graphrl.checkpoint(
            lambda x, w: jnp.square(jnp.sin(x) @ jax.reshard(w, P())).mean(), slowdown=0.5, seconds=0.1, cache=False
        )
        report = own.report(*args)
    assert report.devices == 8
    assert report.argument_bytes == (64 + 8) * 8 * 4 / 8


def test_gradients_are_split_as_arguments_are() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AUTO,))
    own = graphrl.checkpoint(loss, budget=0.6, in_shardings=P("data"), mesh=mesh, seconds=0.3, cache=False)
    weights, x = jax.tree.map(lambda leaf: jnp.ones(leaf.shape) / 1e3, ARGS)
    gradient = jax.jit(jax.grad(own))(weights, x)
    assert {leaf.sharding.spec for leaf in jax.tree.leaves(gradient)} == {P("data")}
    batched = jax.vmap(jax.grad(own), in_axes=(None, 0))(weights, jnp.stack([x[:8], x[8:16]]))
    assert batched[0][0].shape == (2, WIDTH, 4 * WIDTH)


def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.sin(jax.nn.gelu(jnp.tanh(x @ w) @ w.T)), None

    return jnp.square(jax.lax.scan(layer, x, weights)[0]).mean()


@functools.cache
def step_bytes(budget: str) -> tuple[int, int]:
    """Bytes of a step on one of two devices by XLA, of a verified plan for a budget; and those in its report."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AUTO,))
    specs = NamedSharding(mesh, P(None, "data")), NamedSharding(mesh, P("data"))
    shapes = (12, 32, 32), (1024, 32)
    args = [jax.ShapeDtypeStruct(s, jnp.float32, sharding=p) for s, p in zip(shapes, specs, strict=True)]
    own = graphrl.checkpoint(scanned, budget=budget, in_shardings=specs, seconds=0.3, cache=False, verify=True)
    gradient = jax.jit(jax.value_and_grad(own), out_shardings=(None, specs[0]))
    memory = gradient.lower(*args).compile().memory_analysis()
    assert memory is not None
    total = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return total, int(own.report().total_bytes)


def test_budgets_of_one_of_several_devices_are_verified() -> None:
    for budget, limit in (("4MiB", 4 << 20), ("1500KiB", 1500 << 10)):
        total, reported = step_bytes(budget)
        assert total <= limit
        assert total == pytest.approx(reported, rel=0.01)
    with pytest.raises(UnmetError, match=r"budget is 300KiB: the least found is .* bytes\)"):
        step_bytes("300KiB")


def test_verification_names_what_it_lacks() -> None:
    mesh = AbstractMesh((8,), ("data",), axis_types=(AUTO,))
    options: dict[str, Any] = {"in_shardings": P("data"), "mesh": mesh, "seconds": 0.1, "cache": False, "verify": True}
    with pytest.raises(GraphrlError, match=r"the mesh has 8 devices, of which 2 are here: give chip=, such as 'h200'"):
        graphrl.checkpoint(loss, slowdown=0.1, **options).report(*ARGS)
    with pytest.raises(GraphrlError, match="cannot compile for an absent a100-80gb: must be one of h100-sxm, h200"):
        graphrl.checkpoint(loss, slowdown=0.1, chip="a100-80gb", **options).report(*ARGS)
    assert missing("abacus").startswith("cannot compile for an absent abacus")


def test_meshes_get_the_devices_that_are_here() -> None:
    mesh = concrete_mesh(AbstractMesh((2,), ("data",), axis_types=(AUTO,)), None)
    assert isinstance(mesh, Mesh)
    assert list(mesh.devices.flat) == jax.devices()[:2]
    assert concrete_mesh(mesh, "h200") is mesh


def test_plans_are_verified_for_the_devices_that_they_are_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = types.SimpleNamespace(device_kind="NVIDIA H200", client=types.SimpleNamespace(platform_version="PJRT"))
    there = types.SimpleNamespace(devices=np.array([absent] * 8))
    monkeypatch.setattr(settings, "concrete_mesh", lambda mesh, chip: mesh if isinstance(mesh, Mesh) else there)
    kinds = [
        Settings(slowdown=0.1, chip="h200", mesh=mesh, in_shardings=P("data"), verify=True)
        for mesh in (jax.make_mesh((2,), ("data",), axis_types=(AUTO,)), MESH)
    ]
    own, other = (each.verified_for(each.layout([])) for each in kinds)
    assert own == kinds[0].verified_for(None) != other == ("NVIDIA H200", "PJRT")
    assert Settings(slowdown=0.1).verified_for(None) == ()


@pytest.mark.parametrize(
    ("kind", "chip"),
    [
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v4", "tpu-v4"),
        ("TPU9", None),
    ],
)
def test_chips_are_recognised_by_the_kind_of_device(
    kind: str, chip: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(device_kind=kind)])
    assert topology.chip_here() == chip


def test_symbolic_dimensions_with_shardings_are_refused() -> None:
    (n,) = jax.export.symbolic_shape("n")
    own = graphrl.checkpoint(loss, slowdown=0.1, **SPLIT)
    with pytest.raises(GraphrlError, match=r"^in_shardings with symbolic dimensions is not supported: give concrete"):
        own.report(ARGS[0], jax.ShapeDtypeStruct((n, WIDTH), jnp.float32))


def test_abstract_meshes_cannot_run_on_other_devices() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AUTO,))
    x = jax.device_put(jnp.ones((16, 8)), NamedSharding(mesh, P("data")))
    options: dict[str, Any] = {**SPLIT, "budget": 0.5, "seconds": 0.1, "in_shardings": P("data")}
    own = graphrl.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum(), **options)
    assert own.report(x).devices == 8
    for run in (own, jax.jit(own), jax.grad(own)):
        with pytest.raises(GraphrlError, match=r"mesh is abstract: call report\(\), or give the devices' mesh"):
            run(x)

    def closed(z: jax.Array) -> jax.Array:
        return graphrl.checkpoint(lambda x: jnp.sin(x * z).sum(), **options)(x)

    with pytest.raises(GraphrlError, match="mesh is abstract"):
        jax.grad(closed)(jnp.ones(()))


def test_collectives_of_a_shard_map_in_the_function_take_seconds() -> None:
    def function(x: jax.Array) -> jax.Array:
        on_shards = jax.shard_map(
            lambda x: jax.lax.psum(jnp.sin(x), "data"), mesh=MESH, in_specs=P("data"), out_specs=P()
        )
        return on_shards(x)

    one, _ = split(function, shape(64, 1000), specs=P("data"))
    assert collectives(one) == {("psum_invariant", "data", 8, 1000): 1}
    moved = 2 * 7 / 8 * 8 * 1000 * 4 / LINK.bandwidth
    assert sum(map(link_seconds, one.jaxpr.eqns)) == pytest.approx(1e-6 + moved)
    assert gradient_seconds(one, "h200") > moved


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"mesh": 8}, "mesh is a int: must be a jax.sharding.Mesh or AbstractMesh"),
    ({"in_shardings": "data"}, "in_shardings has 'data': must be PartitionSpecs or NamedShardings"),
    ({"in_shardings": P("data")}, "in_shardings has PartitionSpecs alone: give their mesh="),
    ({"in_shardings": P("model"), "mesh": MESH}, "in_shardings has mesh axis 'model': the mesh has data"),
    ({"in_shardings": (P("data"),), "mesh": MESH}, "in_shardings do not fit the positional arguments, as in jax.jit"),
    ({"in_shardings": P(None, None, "data"), "mesh": MESH}, "for an array of shape (512, 2048)"),
    ({"in_shardings": P("data"), "mesh": MESH, "link": {"model": "nvlink-4"}}, "link has mesh axis 'model'"),
    ({"link": "nvlink"}, "unknown link 'nvlink'"),
]


@pytest.mark.parametrize("case", range(len(FAULTS)))
def test_faults_of_sharding_options_are_one_line(case: int) -> None:
    options, fault = FAULTS[case]
    with pytest.raises(GraphrlError) as error:
        graphrl.checkpoint(loss, slowdown=0.1, seconds=0.1, cache=False, **options).report(*ARGS)
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


def test_links_of_chips_are_known() -> None:
    assert {*LINKS.values()} <= {*INTERCONNECTS}
    assert find_link("nvlink-4").bandwidth == 450e9
    assert find_link(LINK) is LINK


def test_a_mesh_of_one_device_changes_nothing() -> None:
    mesh = AbstractMesh((1,), ("data",), axis_types=(AUTO,))
    own = graphrl.checkpoint(loss, slowdown=0.1, seconds=0.1, cache=False, in_shardings=P("data"), mesh=mesh)
    assert own.report(*ARGS).devices == 1


def test_seconds_of_collectives_count_in_a_step() -> None:
    args = shape(4096, 4096), shape(4096, 4096)
    free, dear = (
        gradient_seconds(split(lambda x, w: x @ w, *args, specs=(X, X), link=Interconnect(0, rate, "t"))[0], "h200")
        for rate in (1e15, 1e9)
    )
    assert dear - free == pytest.approx(7 / 8 * 4096 * 4096 * 4 / 1e9, rel=0.01)
