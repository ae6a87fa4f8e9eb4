"""`graphrl.fit`: whole training steps fit by XLA's figure, and compute what they computed before."""

import functools
import pickle
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from xla_programs import loose_numerics

import graphrl
from graphrl.errors import GraphrlError, ProblemError
from graphrl.units import parse_bytes
from graphrl.xla.checkpoint.largest import largest_size

pytestmark = pytest.mark.usefixtures("loose_numerics")

__all__ = ["loose_numerics"]

LAYERS, WIDTH, N = 8, 16, 512
RULE = optax.sgd(0.1, momentum=0.9)
fit = functools.partial(graphrl.fit, seconds=0.1, cache=False, offload=False)


def layers(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Layers in a loop, whose kept values XLA for the CPU counts too."""

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.sin(jax.nn.gelu(jnp.tanh(x @ w) @ w.T)), None

    return jax.lax.scan(layer, x, weights)[0]


def loss(params: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
    """Mean loss with auxiliary results of each kind: a mean, of each example, and independent of the batch."""
    outputs = layers(params["weights"], x)
    aux = {"mean": jnp.abs(outputs).mean(), "outputs": outputs[:, 0], "count": params["count"].astype(int) + 1}
    return jnp.square(outputs - y[:, None]).mean(), aux


def step(params: Any, moments: Any, x: jax.Array, y: jax.Array) -> Any:
    """A training step under Optax."""
    (value, aux), gradient = jax.value_and_grad(loss, has_aux=True)(params, x, y)
    updates, moments = RULE.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments, value, aux


def arguments(n: int = N) -> tuple[Any, ...]:
    """Arguments of the step."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"weights": jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH)) / 4, "count": jnp.zeros(())}
    return params, RULE.init(params), jax.random.normal(keys[1], (n, WIDTH)), jax.random.normal(keys[2], (n,))


BATCH = {"x": 0, "y": 0}


def needed(function: Callable[..., Any], *args: Any, **options: Any) -> int:
    """Bytes of a step by XLA for the CPU."""
    memory = jax.jit(function, **options).lower(*args).compile().memory_analysis()
    assert memory is not None
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    return sum(sizes) - memory.alias_size_in_bytes


@functools.cache
def plain() -> int:
    """Bytes of the step as it is."""
    return needed(step, *arguments())


def assert_equal(expected: Any, result: Any, tolerance: float = 2e-6) -> None:
    """Results have the same structure and the same numbers, to rounding."""
    assert str(jax.tree.structure(expected)) == str(jax.tree.structure(result))
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(result), strict=True):
        assert (jnp.shape(a), jax.typeof(a).dtype) == (jnp.shape(b), jax.typeof(b).dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_a_step_that_fits_stays_as_it_is() -> None:
    fitted = fit(step, *arguments(), memory=f"{plain()}B")
    report = fitted.report()
    assert len(report.tries) == 1
    assert (report.fitted.bytes, report.fitted.microbatches, report.slowdown) == (plain(), 1, 0.0)
    expected, result = jax.jit(step)(*arguments()), fitted(*arguments())
    assert all(map(np.array_equal, jax.tree.leaves(expected), jax.tree.leaves(result)))


def test_a_step_fits_by_recomputation() -> None:
    limit = plain() // 2
    lines: list[str] = []
    fitted = fit(step, *arguments(), memory=f"{limit}B", progress=lines.append)
    report = fitted.report()
    assert len(lines) == sum(each.is_compiled for each in report.tries)
    assert lines[0].startswith("step: as it is: ")
    assert " does not fit " in lines[0]
    assert report.fitted.microbatches == 1
    assert report.fitted.is_compiled
    assert needed(fitted, *arguments()) == report.fitted.bytes <= limit
    assert_equal(jax.jit(step)(*arguments()), fitted(*arguments()))
    text = str(report)
    assert "as it is" in text
    assert text.count("chosen") == 1
    assert report.to_dict()["tries"][report.chosen]["bytes"] == report.fitted.bytes


def test_a_step_fits_in_microbatches() -> None:
    params, moments, *batch = arguments()
    outside = plain() - needed(step, *arguments())  # 0: for the limit below, XLA's figure is that of `plain`
    limit = outside + plain() // 9
    with pytest.raises(ProblemError, match=r"memory is \d+B: the least found is .* \(\d[\d,]* bytes\)$"):
        fit(step, params, moments, *batch, memory=f"{limit}B")
    fitted = fit(step, params, moments, *batch, memory=f"{limit}B", batch_axis=BATCH)
    report = fitted.report()
    assert report.fitted.microbatches > 1
    assert report.batch == fitted.batch == N
    assert needed(fitted, params, moments, *batch) <= limit
    assert_equal(jax.jit(step)(params, moments, *batch), fitted(params, moments, *batch))


def test_other_shapes_follow_the_plan() -> None:
    fitted = fit(step, *arguments(), memory=f"{plain() // 9}B", batch_axis=BATCH)
    for n in (N // 2, 1, N // 2 + 3):
        assert_equal(jax.jit(step)(*arguments(n)), fitted(*arguments(n)))
    assert needed(fitted, *arguments(N // 2)) < 0.5 * needed(step, *arguments(N // 2))


def scaled(weights: jax.Array, x: jax.Array, scale: jax.Array) -> Any:
    """A step whose equations depend on whether the type of `scale` is weak."""
    return jax.value_and_grad(lambda w: (scale * jnp.square(layers(w, x))).mean())(weights)


def test_traces_that_jax_repeats_run_in_microbatches_too() -> None:
    weights, x, scale = arguments()[0]["weights"], arguments()[2], jnp.ones(()).astype(jnp.float32)
    weak = jnp.asarray(1.0)
    assert (scale.weak_type, weak.weak_type) == (False, True)
    limit = needed(scaled, weights, x, scale) // 9
    fitted = fit(scaled, weights, x, scale, memory=f"{limit}B", batch_axis={"x": 0})
    assert fitted.report().fitted.microbatches > 1
    expected = jax.jit(scaled)(weights, x, scale)
    assert_equal(expected, fitted(weights, x, scale))
    assert_equal(expected, fitted(weights, x, weak))
    with jax.default_matmul_precision("highest"):
        assert_equal(expected, fitted(weights, x, scale))
    assert_equal(expected, jax.jit(fitted)(weights, x, scale))


def activated(weights: jax.Array, x: jax.Array, activation: str) -> Any:
    """A step with a static argument."""
    x, last = x.astype(weights.dtype), getattr(jnp, activation)
    return jax.value_and_grad(lambda w: jnp.square(last(layers(w, x))).mean())(weights)


@pytest.mark.parametrize("is_named", [False, True])
def test_other_static_values_and_dtypes_run_in_microbatches_too(is_named: bool) -> None:
    weights, x = arguments()[0]["weights"], arguments()[2]
    jitted = jax.jit(activated, static_argnames="activation")

    def call(function: Any, x: jax.Array, activation: str, **options: Any) -> Any:
        if is_named:
            return function(weights, x, activation=activation, **options)
        return function(weights, x, activation, **options)

    static: Any = {"static_argnames": "activation"} if is_named else {"static_argnums": 2}
    limit = needed(functools.partial(activated, activation="sin"), weights, x) // 9
    fitted = call(functools.partial(fit, jitted), x, "sin", memory=f"{limit}B", batch_axis={"x": 0}, **static)
    assert fitted.report().fitted.microbatches > 1
    for other, activation in ((x, "sin"), (x, "cos"), (x.astype(jnp.bfloat16), "sin")):
        assert_equal(call(jitted, other, activation), call(fitted, other, activation))


def test_a_jitted_step_keeps_its_donation_and_its_other_traces() -> None:
    jitted = jax.jit(step, donate_argnums=(0, 1))
    plain_bytes = needed(step, *arguments(), donate_argnums=(0, 1))
    assert_equal(jax.jit(step)(*arguments()), jitted(*arguments()))
    fitted = fit(jitted, *arguments(), memory=f"{plain_bytes // 2}B")
    assert fitted.report().tries[0].bytes == plain_bytes < plain()
    args = arguments()
    assert_equal(jax.jit(step)(*arguments()), fitted(*args))
    assert args[0]["weights"].is_deleted()
    memory: Any = jitted.lower(*arguments()).compile().memory_analysis()
    assert memory.temp_size_in_bytes > fitted.report().fitted.bytes
    outside = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert fitted.report().outside_bytes == pytest.approx(outside, rel=0.01)  # XLA adds a pointer for each result
    with pytest.raises(ProblemError, match="donate_argnums: the step is jitted already"):
        fit(jitted, *arguments(), memory="1MB", donate_argnums=0)


def test_the_largest_batch() -> None:
    limit = plain() // 2
    shapes = jax.eval_shape(lambda: arguments(N))
    lines: list[str] = []
    options: dict[str, Any] = {"batch_axis": BATCH, "largest_batch": True, "progress": lines.append}
    fitted = fit(step, *shapes, memory=f"{limit}B", **options)
    assert fitted.batch is not None
    assert len(lines) <= 9
    assert all(line.startswith("step: batch ") for line in lines)
    assert fitted.batch > N
    assert fitted.report().fitted.microbatches == 1
    assert needed(fitted, *arguments(fitted.batch)) <= limit
    assert_equal(jax.jit(step)(*arguments(fitted.batch)), fitted(*arguments(fitted.batch)))
    with pytest.raises(ProblemError, match=r"memory is 10kB: the least found, for a batch of 1, is .* bytes\)$"):
        fit(step, *shapes, memory="10kB", **options)


def test_a_jump_of_bytes_does_not_mislead_the_search() -> None:
    sizes: list[int] = []

    def needs(size: int) -> float:
        sizes.append(size)
        return 77.0 if size <= 60 else 16 + 0.75 * size  # less for 61 than for 60

    assert largest_size(needs, 84.2, 60) == 90
    assert len(sizes) <= 8


def test_the_largest_batch_of_a_step_that_stays_as_it_is() -> None:
    def wide(weights: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def of(weights: jax.Array) -> jax.Array:
            outputs = jax.lax.scan(lambda x, w: (jnp.square(x @ w), None), x, weights)[0]
            return jnp.square(outputs).mean() + y.mean()

        return jax.value_and_grad(of)(weights)

    sizes = (12, 1024, 1024), (1, 1024, 1024), (1, 12 * 2**20)  # two examples do not fit under any plan
    args = [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]
    limit = needed(wide, *args) * 102 // 100
    fitted = fit(wide, *args, memory=f"{limit}B", batch_axis={"x": 0, "y": 0}, largest_batch=True)
    report = fitted.report()
    assert (fitted.batch, report.fitted.plan, report.slowdown) == (1, "as it is", 0.0)
    assert needed(fitted, *args) == report.fitted.bytes <= limit
    assert len(report.tries) > 1


def test_a_fit_is_read_from_disk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second = (fit(step, *arguments(), memory=f"{plain() // 2}B", cache=True) for _ in range(2))
    assert (first.report().from_cache, second.report().from_cache) == (False, True)
    assert first.report().tries == second.report().tries
    assert needed(second, *arguments()) == first.report().fitted.bytes
    copy = pickle.loads(pickle.dumps(second))
    assert needed(copy, *arguments()) == first.report().fitted.bytes


def dropped(weights: jax.Array, x: jax.Array, key: jax.Array) -> Any:
    """A step of a loss with dropout, which returns its random numbers."""

    def of(weights: jax.Array) -> Any:
        numbers = jax.random.uniform(key, (len(x),))
        return jnp.square(layers(weights, x * (numbers > 0.5)[:, None])).mean(), numbers

    (value, numbers), gradient = jax.value_and_grad(of, has_aux=True)(weights)
    return weights - gradient, value, numbers


def test_typed_keys_differ_in_each_microbatch() -> None:
    params, _, x, _ = arguments()
    args, axes = (params["weights"], x, jax.random.key(3)), {"x": 0}
    fitted = fit(dropped, *args, memory=f"{needed(dropped, *args) // 9}B", batch_axis=axes)
    count = fitted.report().fitted.microbatches
    numbers = np.asarray(fitted(*args)[2]).reshape(count, -1)
    assert count > 1
    assert len({row.tobytes() for row in numbers}) == count


def whole_batch(params: Any, x: jax.Array) -> Any:
    """A step whose loss counts over the batch."""

    def of(weights: jax.Array) -> Any:
        outputs = layers(weights, x)
        return jnp.square(outputs).mean(), (outputs > 0).sum()

    (value, count), gradient = jax.value_and_grad(of, has_aux=True)(params["weights"])
    return value, count, gradient


def fixed_batch(params: Any, x: jax.Array) -> Any:
    """A step that runs with one batch size only."""
    return jax.value_and_grad(lambda w: jnp.square(layers(w, x).reshape(N, WIDTH, 1)).mean())(params["weights"])


@pytest.mark.parametrize(
    ("function", "axes", "fault"),
    [
        (whole_batch, {"x": 0}, "microbatches: the loss returns int32.* that depends on the batch"),
        (fixed_batch, {"x": 0}, r"the step does not run with a batch of \d+ \(its shapes must follow its arguments\)"),
        (whole_batch, {"images": 0}, "batch_axis has 'images': the step's arguments are params, x"),
        (whole_batch, {"x": 2}, r"batch_axis is 2 for x, which has an array of shape \(512, 16\)"),
        (whole_batch, {"x": "0"}, "batch_axis is '0' for x"),
        (lambda params, x: (x + 1).sum(), None, "the step takes no gradient by jax.grad or jax.value_and_grad"),
    ],
)
def test_steps_that_cannot_be_fitted_are_refused_in_one_line(function: Any, axes: Any, fault: str) -> None:
    params, _, x, _ = arguments()
    limit = needed(function, params, x) // 9 if axes else needed(function, params, x) - 1
    with pytest.raises(ProblemError, match=fault) as raised:
        fit(function, params, x, memory=f"{limit}B", batch_axis=axes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"memory": 3}, 'memory is 3: must be bytes such as "80GiB"'),
        ({"memory": "1kB"}, "memory is 1kB: arguments and results alone need"),
        ({"memory": "1MB", "batch_axis": 0}, "batch_axis is 0: must name arguments"),
        ({"memory": "1MB", "largest_batch": True}, "largest_batch needs batch_axis"),
        ({"memory": "1MB", "progress": 3}, "progress is 3: must be a function"),
    ],
)
def test_options_at_fault(options: Any, fault: str) -> None:
    with pytest.raises(GraphrlError, match=fault):
        fit(step, *arguments(), **options)
    assert parse_bytes("1kB") < plain()


def test_a_static_argument_that_is_not_declared_is_named() -> None:
    jitted = jax.jit(activated, static_argnums=2)
    with pytest.raises(GraphrlError, match=r"activation is 'sin', of type str: .* static, with 2 in static_argnums$"):
        fit(jitted, arguments()[0]["weights"], arguments()[2], "sin", memory="1MB")


def test_nothing_is_compiled_twice_as_it_is() -> None:
    lines: list[str] = []
    with pytest.raises(ProblemError, match="the least found is"):
        fit(step, *arguments(), memory=f"{plain() // 9}B", progress=lines.append)
    assert sum(": as it is: " in line for line in lines) == 1


def test_a_step_with_rules_of_its_own_is_tried_with_gradients_that_wait() -> None:
    def ruled(weights: jax.Array, x: jax.Array) -> jax.Array:
        for w in weights:
            x = jax.checkpoint(lambda x, w: x + jnp.sin(jnp.tanh(x @ w) @ w.T))(x, w)
        return jnp.square(x).mean()

    weights, x = arguments()[0]["weights"], arguments()[2]
    lines: list[str] = []
    limit = needed(jax.grad(ruled), weights, x) // 2
    with pytest.raises(ProblemError, match="the least found is"):
        fit(jax.grad(ruled), weights, x, memory=f"{limit}B", progress=lines.append)
    plans = [line.split(": ")[1] for line in lines]
    assert plans[0] == "as it is"
    assert "as it is, gradients wait" in plans
    assert plans.count("as it is") == 1


class Network(nnx.Module):
    """Layers with dropout and a running mean."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2)])
        self.norm, self.dropout = nnx.BatchNorm(WIDTH, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.stack = nnx.Param(jax.random.normal(jax.random.key(1), (LAYERS, WIDTH, WIDTH)) / 4)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return self.norm(self.dropout(layers(self.stack[...], x)))


@nnx.jit
def nnx_step(model: Network, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
    """A training step in Flax NNX."""
    value, gradient = nnx.value_and_grad(lambda model, x: jnp.square(model(x) - x).mean())(model, x)
    optimizer.update(model, gradient)
    return value


@pytest.mark.parametrize("part", [2, 9])
def test_a_step_of_nnx(part: int) -> None:
    def start() -> Any:
        model = Network()
        return model, nnx.Optimizer(model, RULE, wrt=nnx.Param)

    x = arguments()[2]
    model, optimizer = start()
    whole = fit(nnx_step, model, optimizer, x, memory="1GB").report().fitted.bytes
    fitted = fit(nnx_step, model, optimizer, x, memory=f"{whole // part}B", batch_axis={"x": 0})
    assert (fitted.report().fitted.microbatches > 1) == (part == 9)
    values = [fitted(model, optimizer, x) for _ in range(2)]
    assert int(optimizer.step[...]) == 2
    other, other_optimizer = start()
    expected = [nnx_step(other, other_optimizer, x) for _ in range(2)]
    state, other_state = (nnx.state(each, nnx.Not(nnx.RngKey)) for each in (model, other))
    if part == 2:
        assert_equal((expected, nnx.to_pure_dict(other_state)), (values, nnx.to_pure_dict(state)), 1e-5)
    else:  # statistics and random numbers are those of microbatches
        assert str(jax.tree.structure(state)) == str(jax.tree.structure(other_state))
        assert int(model.dropout.rngs.count[...]) == int(other.dropout.rngs.count[...])


class Perceptron(eqx.Module):
    """Layers in a loop, and a function."""

    weights: jax.Array
    activation: Callable[[jax.Array], jax.Array]

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(layers(self.weights, x))


def eqx_step(model: Perceptron, moments: Any, x: jax.Array) -> Any:
    """A training step in Equinox."""
    value, gradient = eqx.filter_value_and_grad(lambda model, x: jnp.square(model(x)).mean())(model, x)
    updates, moments = RULE.update(gradient, moments, model)
    return eqx.apply_updates(model, updates), moments, value


@pytest.mark.parametrize("jit", [lambda fn: fn, eqx.filter_jit])
@pytest.mark.parametrize("part", [2, 9])
def test_a_step_of_equinox(jit: Callable[[Any], Any], part: int) -> None:
    params, _, x, _ = arguments()
    model = Perceptron(params["weights"], jnp.tanh)
    args = model, RULE.init(eqx.filter(model, eqx.is_array)), x
    whole = fit(jit(eqx_step), *args, memory="1GB").report().fitted.bytes
    fitted = fit(jit(eqx_step), *args, memory=f"{whole // part}B", batch_axis={"x": 0})
    assert (fitted.report().fitted.microbatches > 1) == (part == 9)
    expected, result = eqx.filter_jit(eqx_step)(*args), fitted(*args)
    assert result[0].activation is jnp.tanh
    assert_equal(eqx.filter(expected, eqx.is_array), eqx.filter(result, eqx.is_array))
    other = Perceptron(params["weights"], jnp.sin), *args[1:]
    assert_equal(eqx.filter(eqx.filter_jit(eqx_step)(*other), eqx.is_array), eqx.filter(fitted(*other), eqx.is_array))
