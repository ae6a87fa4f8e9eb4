"""`graphrl.fit` of steps that several devices share: memory of one device, microbatches of all, values."""

import functools
import json
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from processes import run_python
from xla_programs import loose_numerics

import graphrl
from graphrl.errors import ProblemError
from graphrl.graphs.readers.jaxpr.work import inner_jaxprs
from graphrl.graphs.roofline import find_chip
from graphrl.xla import topology
from graphrl.xla.checkpoint.fit_search import numbers_of_microbatches
from graphrl.xla.checkpoint.microbatches import _blocks, _joined
from graphrl.xla.checkpoint.primitives import COLLECTIVE
from graphrl.xla.checkpoint.settings import Static
from graphrl.xla.checkpoint.step_shards import StepShards
from graphrl.xla.checkpoint.steps import Rules, Step, TracedStep

pytestmark = pytest.mark.usefixtures("loose_numerics")

__all__ = ["loose_numerics"]

LAYERS, WIDTH, N = 8, 16, 512
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
BATCH = {"x": 0, "y": 0}
SPLIT = P(None, "data")  # of weights
fit = functools.partial(graphrl.fit, seconds=0.1, cache=False, offload=False)


def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.sin(jax.nn.gelu(jnp.tanh(x @ w) @ w.T)), None

    outputs = jax.lax.scan(layer, x, weights)[0]
    return jnp.square(outputs - y[:, None]).mean(), {"mean": jnp.abs(outputs).mean(), "outputs": outputs[:, 0]}


def step(weights: jax.Array, momentum: jax.Array, x: jax.Array, y: jax.Array) -> Any:
    (value, aux), gradient = jax.value_and_grad(loss, has_aux=True)(weights, x, y)
    momentum = 0.9 * momentum + gradient
    return weights - 0.1 * momentum, momentum, value, aux


def arguments(n: int = N) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 3)
    weights = jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH)) / 4
    return weights, weights / 8, jax.random.normal(keys[1], (n, WIDTH)), jax.random.normal(keys[2], (n,))


def shardings(mesh: Any, weights: P = SPLIT) -> tuple[NamedSharding, ...]:
    of_weights, of_batch = NamedSharding(mesh, weights), NamedSharding(mesh, P("data"))
    return of_weights, of_weights, of_batch, of_batch


def two(axis_type: AxisType = AUTO) -> Any:
    return jax.make_mesh((2,), ("data",), axis_types=(axis_type,))


def bytes_of(function: Any, args: Any, **options: Any) -> int:
    """Bytes of a step on one device, by XLA."""
    memory: Any = jax.jit(function, **options).lower(*args).compile().memory_analysis()
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    return sum(sizes) - memory.alias_size_in_bytes


def assert_equal(expected: Any, result: Any) -> None:
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(result), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


CASES = [(SPLIT, AUTO), (P(), AUTO), (P(), EXPLICIT)]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_steps_of_two_devices_fit_and_keep_their_shardings(case: int) -> None:
    weights, axis_type = CASES[case]
    own = shardings(two(axis_type), weights)
    args = jax.device_put(arguments(), own)
    plain = bytes_of(step, args, donate_argnums=(0, 1))
    jitted = jax.jit(step, donate_argnums=(0, 1))
    fitted = fit(jitted, *args, memory=f"{plain // 7}B", batch_axis=BATCH)
    report = fitted.report()
    assert (report.devices, report.tries[0].bytes) == (2, plain)
    assert report.fitted.microbatches > 1
    assert report.fitted.bytes <= plain // 7
    assert bytes_of(fitted, args, donate_argnums=(0, 1)) == report.fitted.bytes
    assert "shared by 2 devices: all figures are one device's" in str(report)
    expected, result = jax.jit(step)(*arguments()), fitted(*args)
    assert args[0].is_deleted()
    assert_equal(expected, result)
    assert [each.sharding.is_equivalent_to(one, each.ndim) for each, one in zip(result[:2], own, strict=False)] == [
        True,
        True,
    ]
    for n in (N // 2, 2):
        args = jax.device_put(arguments(n), own)
        assert_equal(jax.jit(step)(*arguments(n)), fitted(*args))


def test_means_may_be_split_over_explicit_axes() -> None:
    def local(weights: jax.Array, x: jax.Array) -> Any:
        def of(weights: jax.Array) -> Any:
            outputs = jax.lax.scan(lambda x, w: (x + jnp.sin(jax.nn.gelu(jnp.tanh(x * w))), None), x, weights)[0]
            return jnp.square(outputs).mean(), jnp.abs(outputs).mean(0)

        return jax.value_and_grad(of, has_aux=True)(weights)

    weights, _, x, _ = arguments()
    args = jax.device_put((weights[:, 0], x), NamedSharding(two(EXPLICIT), P(None, "data")))
    memory: Any = jax.jit(local).lower(*args).compile().memory_analysis()
    limit = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes // 9
    fitted = fit(local, *args, memory=f"{limit}B", batch_axis={"x": 0})
    assert fitted.report().fitted.microbatches > 1
    expected, result = jax.jit(local)(*args), fitted(*args)
    assert result[0][1].sharding.spec == P("data")
    assert_equal(expected, result)


def test_values_on_eight_devices_are_those_of_the_step(tmp_path: Path) -> None:
    done = run_python(tmp_path, str(Path(__file__).parents[2] / "helpers" / "sharded_fits.py"))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert {*figures} == {"fully sharded", "tensor parallel", "expert parallel"}
    for name, each in figures.items():
        assert each["difference"] <= 1e-6, name
        assert each["is_split"], name
        assert each["microbatches"] > 1 or each["plan"] != "as it is", name
    assert any(each["microbatches"] > 1 for each in figures.values())
    assert any(each["plan"] != "as it is" for each in figures.values())


def traced(function: Any, *args: Any) -> TracedStep:
    return Step(function, {}, Static(), BATCH).trace(Rules(), args, {}).with_shards(find_chip("h200"), None)


def shapes(own: Any = None) -> Any:
    structs = jax.eval_shape(arguments)
    pairs = zip(structs, own or [None] * len(structs), strict=True)
    return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=each) for x, each in pairs)


EIGHT = AbstractMesh((8,), ("data",), axis_types=(AUTO,))
ROWS = (("data",), ())


def split_of(each: TracedStep) -> tuple[Any, ...]:
    assert each.shared is not None
    (of_loss,) = each.shared.losses
    return each.shared.layout.sizes["data"], each.shared.arguments, of_loss


def test_shardings_are_those_of_arguments_jits_or_types() -> None:
    given = split_of(traced(step, *shapes(shardings(EIGHT))))
    assert given == (8, (((), ("data",), ()), ((), ("data",), ()), ROWS, (("data",),)), given[2])
    assert sorted(given[2]) == sorted((given[1][0], *given[1][2:]))  # of the weights and the batch
    jitted = jax.jit(step, in_shardings=shardings(EIGHT))
    assert split_of(traced(jitted, *shapes())) == given
    explicit = AbstractMesh((8,), ("data",), axis_types=(EXPLICIT,))
    with jax.sharding.use_abstract_mesh(explicit):
        typed = split_of(traced(step, *shapes(shardings(explicit, P()))))
    assert typed[1][2] == ROWS
    assert sorted(typed[2]) == sorted((typed[1][0], *typed[1][2:]))

    def constrained(weights: Any, momentum: Any, x: Any, y: Any) -> Any:
        return step(weights, momentum, jax.lax.with_sharding_constraint(x, NamedSharding(EIGHT, P("data"))), y)

    devices, of_arguments, of_loss = split_of(traced(constrained, *shapes()))
    assert (devices, of_arguments[2]) == (8, ((), ()))
    assert ROWS in of_loss


def test_losses_of_a_shard_map_have_the_shapes_of_shards() -> None:
    def local(weights: Any, x: Any, y: Any) -> Any:
        (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(weights, x, y)
        return jax.lax.pmean(value, "data"), jax.lax.pmean(gradient, "data")

    mapped = jax.shard_map(
        local, mesh=EIGHT, in_specs=(P(), P("data"), P("data")), out_specs=(P(), P()), check_vma=False
    )
    args = shapes(shardings(EIGHT, P()))
    each = Step(mapped, {}, Static(), {}).trace(Rules(), (args[0], *args[2:]), {})
    each = each.with_shards(find_chip("h200"), None)
    assert each.shared is not None
    assert each.shared.losses == (None,)
    assert each.losses[0].program.shards is None
    assert (N // 8, WIDTH) in [aval.shape for aval in each.losses[0].program.closed.in_avals]


def test_one_device_runs_its_share_and_collectives() -> None:
    whole, part = traced(step, *shapes()), traced(step, *shapes(shardings(EIGHT)))
    assert whole.shared is None
    assert whole.on_one_device() is whole.closed
    assert [aval.shape for aval in part.on_one_device().in_avals] == [
        (LAYERS, WIDTH // 8, WIDTH),
        (LAYERS, WIDTH // 8, WIDTH),
        (N // 8, WIDTH),
        (N // 8,),
    ]

    def kinds(jaxpr: Any) -> set[str]:
        own = {eqn.params["kind"] for eqn in jaxpr.eqns if eqn.primitive is COLLECTIVE}
        inner = [each for eqn in jaxpr.eqns for each in inner_jaxprs(eqn.params).values()]
        return own.union(*(kinds(getattr(each, "jaxpr", each)) for each in inner))

    assert {"all_gather", "reduce_scatter"} <= kinds(part.on_one_device().jaxpr)


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("axis", [0, 1])
def test_microbatches_take_an_equal_share_of_each_part(axis: int, parts: int) -> None:
    x = np.arange(24).reshape(24, 1) if axis == 0 else np.arange(24).reshape(1, 24)
    blocks = _blocks(x, axis, 3, parts)
    for block in blocks:
        counts = [np.sum(np.asarray(block) // (24 // parts) == part) for part in range(parts)]
        assert counts == [8 // parts] * parts
    np.testing.assert_array_equal(_joined(blocks, axis, parts), x)


def test_numbers_of_microbatches_split_evenly() -> None:
    assert numbers_of_microbatches(24, 1) == [1, 2, 3, 4, 6, 8, 12, 24]
    assert numbers_of_microbatches(24, 4) == [1, 2, 3, 6]
    assert numbers_of_microbatches(6, 4) == []
    assert traced(step, *shapes(shardings(EIGHT))).parts == 8
    both = AbstractMesh((2, 4), ("data", "model"), axis_types=(AUTO, AUTO))
    own = NamedSharding(both, P()), NamedSharding(both, P()), NamedSharding(both, P("data")), NamedSharding(both, P())
    assert traced(step, *shapes(own)).parts == 2


def test_the_largest_batch_is_split_evenly() -> None:
    own = shardings(two())
    args = shapes(own)
    limit = bytes_of(step, args) // 2
    fitted = fit(step, *args, memory=f"{limit}B", batch_axis=BATCH, largest_batch=True)
    assert fitted.batch is not None
    assert fitted.batch > N
    assert fitted.batch % 2 == 0
    assert fitted.report().fitted.bytes <= limit


def test_a_fit_is_stored_by_its_shardings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    args = jax.device_put(arguments(), shardings(two()))
    limit = f"{bytes_of(step, args) // 7}B"
    first, second = (fit(step, *args, memory=limit, batch_axis=BATCH, cache=True) for _ in range(2))
    assert (first.report().from_cache, second.report().from_cache) == (False, True)
    assert bytes_of(second, args) == first.report().fitted.bytes
    assert bytes_of(pickle.loads(pickle.dumps(second)), args) == first.report().fitted.bytes
    whole = jax.device_put(arguments(), shardings(two(), P()))
    for other, link in ((args, "infiniband-ndr"), (whole, None)):
        fitted = fit(step, *other, memory=limit, batch_axis=BATCH, cache=True, link=link)
        assert not fitted.report().from_cache
        assert fitted.report().fitted.bytes == bytes_of(fitted, other)


def test_a_fitted_step_under_jit_takes_other_arguments() -> None:
    def scaled(weights: Any, momentum: Any, x: Any, y: Any, scale: Any = None) -> Any:
        return step(weights, momentum, x if scale is None else scale * x, y)

    args = jax.device_put(arguments(), shardings(two()))
    fitted = fit(scaled, *args, memory=f"{bytes_of(step, args) // 7}B", batch_axis=BATCH)
    for more in ((), (2.0,)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6),
            jax.jit(fitted)(*args, *more),
            scaled(*args, *more),
        )


def on_both_meshes(weights: Any, momentum: Any, x: Any, y: Any) -> Any:
    x = jax.lax.with_sharding_constraint(x, NamedSharding(AbstractMesh((4,), ("data",), axis_types=(AUTO,)), P("data")))
    return step(weights, momentum, x, y)


def test_what_cannot_be_had_is_refused_in_one_line() -> None:
    two_devices = jax.device_put(arguments(2), shardings(two()))
    outside = fit(step, *two_devices, memory="1MB").report().outside_bytes
    calls = [
        ("fit takes no mesh: give NamedShardings to", lambda: fit(step, *two_devices, memory="1MB", mesh=two())),
        (
            "fit takes no in_shardings: give NamedShardings to the step's arguments or jax.jit",
            lambda: fit(step, *two_devices, memory="1MB", in_shardings=P()),
        ),
        (
            "shardings on meshes of 8 data and of 4 data: must be on one",
            lambda: fit(on_both_meshes, *shapes(shardings(EIGHT)), memory="1MB"),
        ),
        (
            "the mesh has 8 devices, of which 2 are here: give chip=, such as 'h200'",
            lambda: fit(step, *shapes(shardings(EIGHT)), memory="1MB"),
        ),
        (
            "the least found, with at least 2 examples in a microbatch, one for each part of the batch, is .*bytes",
            lambda: fit(step, *two_devices, memory=f"{outside + 200}B", batch_axis=BATCH),
        ),
        (
            r"memory is 1kB: arguments and results alone need .* bytes\)$",
            lambda: fit(step, *two_devices, memory="1kB", batch_axis=BATCH),
        ),
    ]
    for fault, call in calls:
        with pytest.raises(graphrl.GraphrlError, match=fault) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_steps_on_devices_that_are_here_are_compiled_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(chip: str, count: int) -> list[Any]:
        assert (chip, count) == ("h200", 2)
        return jax.devices()[::-1]

    monkeypatch.setattr(topology, "absent_devices", absent)
    on_two = NamedSharding(two(), P("data"))

    def constrained(weights: Any, momentum: Any, x: Any, y: Any) -> Any:
        return step(weights, momentum, jax.lax.with_sharding_constraint(x, on_two), y)

    args = jax.device_put(arguments(), shardings(two()))
    each = traced(jax.jit(constrained), *args)
    assert list(each.mesh("h200").devices) == jax.devices()[::-1]
    assert list(each.mesh(None).devices) == jax.devices()
    assert each.compile("h200") == each.compile(None)


def test_other_kinds_of_shardings_are_refused() -> None:
    class Other:
        num_devices = 2

    each = Step(step, {}, Static(), {}).trace(Rules(), shapes(), {})
    with pytest.raises(ProblemError, match="an argument is split by a Other: must be a NamedSharding"):
        each._replace(shardings=(Other(), None, None, None)).with_shards(find_chip("h200"), None)
    one = SingleDeviceSharding(jax.devices()[0])
    assert traced(step, *shapes((one,) * 4)).shared is None


def test_arguments_of_other_losses_stay_as_they_are() -> None:
    each = traced(step, *shapes(shardings(EIGHT)))
    shared = each.shared
    assert isinstance(shared, StepShards)
    plain = Step(step, {}, Static(), {}).trace(Rules(), shapes(), {}).losses[0]
    assert shared.split(1, plain) is plain
    assert shared.split(0, plain).program.shards is not None
