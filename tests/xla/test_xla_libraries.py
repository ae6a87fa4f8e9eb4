"""`graphrl.jit` and `graphrl.compile` in place of other libraries' jit: the same results, and a plan."""

import threading
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState
from jit_searches import jit, same, searches
from xla_programs import N, branches, loose_numerics, plans, vector

import graphrl
from graphrl.xla import hook
from graphrl.xla import jit as compiling
from graphrl.xla.libraries import LibraryNeeded

pytestmark = pytest.mark.usefixtures("plans", "loose_numerics")

__all__ = ["loose_numerics", "plans", "searches"]


class Scaled(nnx.Module):
    """A parameter, a count of calls and a stream of random numbers, all of which training changes."""

    def __init__(self) -> None:
        self.scale = nnx.Param(jnp.ones(N))
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls[...] += 1
        return self.dropout(branches(x) * self.scale[...])


def train(model: Scaled, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
    """A step; it returns the loss, and changes model and optimizer."""
    loss, gradient = nnx.value_and_grad(lambda model: jnp.square(model(x)).mean())(model)
    optimizer.update(model, gradient)
    return loss


def _trained(step: Callable[..., Any], steps: int = 2) -> list[np.ndarray]:
    """The losses of some steps, and the final model and optimizer."""
    model = Scaled()
    optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
    losses = [step(model, optimizer, vector(seed)) for seed in range(steps)]
    left = (losses, nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.RngKey))), nnx.to_pure_dict(nnx.state(optimizer)))
    assert model.calls[...] == steps
    return [np.asarray(leaf) for leaf in jax.tree.leaves(left)]


def test_a_module_of_nnx_is_trained() -> None:
    step = jit(train, donate_argnums=(0, 1))
    ours, theirs = _trained(step), _trained(nnx.jit(train))
    assert len(ours) == len(theirs)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    (report,) = step.reports
    assert report.program == "jit_train"
    with pytest.raises(LibraryNeeded, match=r"graphrl\.compile"):
        jit(train).lower(Scaled(), None, vector())


def test_a_module_of_nnx_is_trained_where_there_is_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "why_unavailable", lambda *_: "there is none")
    monkeypatch.setattr(hook, "_warned", set())

    @graphrl.jit
    def double(model: Scaled) -> None:
        model.scale[...] *= 2

    model = Scaled()
    with pytest.warns(UserWarning, match="there is none; double runs under plain jax.jit"):
        double(model)
    double(model)
    assert (model.scale[...] == 4).all()


def test_a_static_argument_that_is_left_out_hides_no_module() -> None:
    def double(model: Scaled, x: jax.Array, times: int = 2) -> jax.Array:
        model.scale[...] *= times
        return x

    model = Scaled()
    jit(double, static_argnums=2)(model, jnp.ones(N))
    assert (model.scale[...] == 2).all()
    jit(double, static_argnums=-1)(model, jnp.ones(N), 3)
    assert (model.scale[...] == 6).all()


def test_threads_that_call_with_modules_at_once() -> None:
    step, models = jit(lambda model, x: model(x)), [Scaled() for _ in range(4)]
    results: list[jax.Array] = []
    threads = [threading.Thread(target=lambda model=model: results.append(step(model, vector()))) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = nnx.jit(lambda model, x: model(x))(Scaled(), vector())
    assert len(results) == 4
    assert all(same(result, expected) for result in results)
    assert [int(model.calls[...]) for model in models] == [1, 1, 1, 1]


def test_nnx_keeps_identity_sharing_and_new_parts() -> None:
    class Pair(nnx.Module):
        def __init__(self, first: Scaled, second: Scaled) -> None:
            self.first, self.second = first, second

        @graphrl.jit
        def change(self, others: dict[str, Any], x: jax.Array) -> tuple[Any, jax.Array]:
            assert self.first is self.second is others["same"]
            self.first.scale[...] += x
            self.fresh = nnx.Param(x * 2)
            return others["same"], x + 1

    shared = Scaled()
    pair = Pair(shared, shared)
    result, array = pair.change({"same": shared, "none": None}, jnp.ones(N))
    assert result is shared
    assert (shared.scale[...] == 2).all()
    assert (pair.fresh[...] == 2).all()
    assert (array == 2).all()
    outer = nnx.jit(lambda pair, x: pair.change({"same": pair.first}, x)[1])  # under a transformation
    outer(pair, jnp.ones(N))
    assert (shared.scale[...] == 3).all()


def test_compile_takes_modules_of_nnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_SECONDS", 0.0)  # of timed steps

    def call(model: Scaled, x: jax.Array) -> jax.Array:
        return model(x)

    model, twin = Scaled(), Scaled()
    for calls, fn in enumerate((call, nnx.jit(call), jit(call))):
        program = graphrl.compile(fn, model, vector(), seconds=0.2)
        assert program.plan is not None
        if fn is call:
            program.report(model, vector())  # leaves the model as it is
        assert model.calls[...] == calls
        assert same(program(model, vector()), nnx.jit(call)(twin, vector()))


class Net(eqx.Module):
    weight: jax.Array
    activation: Callable[[jax.Array], jax.Array]
    rate: float

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(branches(x) * self.weight) * (self.rate if self.rate > 0 else 1)


def test_modules_of_equinox_are_filtered() -> None:
    optimizer = optax.adam(0.01)

    def update(net: Net, state: Any, x: jax.Array, name: str = "sgd") -> tuple[Any, ...]:
        assert name == "adam"
        loss, gradient = eqx.filter_value_and_grad(lambda net: jnp.square(net(x)).mean())(net)
        changes, state = optimizer.update(gradient, state, eqx.filter(net, eqx.is_array))
        return eqx.apply_updates(net, changes), state, loss, name

    net = Net(jnp.ones(N), jnp.tanh, 0.5)
    state = optimizer.init(eqx.filter(net, eqx.is_array))
    step = jit(update)
    theirs = eqx.filter_jit(update)(net, state, vector(), "adam")
    ours = step(net, state, vector(), "adam")
    assert [report.planned for report in step.reports] == [True]
    assert ours[0].activation is jnp.tanh
    assert (ours[0].rate, ours[3]) == (0.5, "adam")
    arrays = [eqx.filter(results[:3], eqx.is_array) for results in (ours, theirs)]
    assert same(*arrays)
    program = graphrl.compile(eqx.filter_jit(update), net, state, vector(), "adam", seconds=0.2)
    assert same(program(net, state, vector(), "adam")[2], theirs[2])


def test_leaves_of_modules_that_are_no_arrays_are_static() -> None:
    traces = []

    @graphrl.jit
    def apply(net: Net, x: jax.Array, *, double: bool = False) -> tuple[Net, jax.Array, str]:
        traces.append(net)
        y = net.activation(x * net.weight) if net.rate > 0 else x
        return Net(net.weight + 1, jnp.cos, net.rate), y * 2 if double else y, "text"

    net, x = Net(jnp.ones(()), jnp.sin, 0.5), jnp.ones(3)
    changed, y, text = apply(net, x)
    assert same(y, jnp.sin(x))
    assert (changed.weight, changed.activation, changed.rate, text) == (2, jnp.cos, 0.5, "text")
    assert same(apply(net, np.ones(3, np.float32), double=True)[1], 2 * jnp.sin(x))
    for rate in (1, 1.0, True):  # equal, and yet not the same program
        assert type(apply(Net(jnp.ones(()), jnp.sin, rate), x)[0].rate) is type(rate)
    count = len(traces)
    assert same(apply(changed, x)[1], jnp.cos(2 * x))
    apply(Net(jnp.zeros(()), jnp.cos, 0.5), x)
    assert len(traces) == count + 1


def test_train_states_of_flax_and_optax(searches: list[str]) -> None:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return branches(x) * self.param("scale", linen.initializers.ones, (N,))

    def update(state: TrainState, x: jax.Array) -> tuple[TrainState, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda params: jnp.square(state.apply_fn(params, x)).mean())(state.params)
        return state.apply_gradients(grads=gradient), loss

    net = Net()
    params = net.init(jax.random.key(0), vector())

    def run(step: Callable[..., Any]) -> Any:
        state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(0.01))
        for seed in range(2):
            state, loss = step(state, vector(seed))
        return state.params, state.opt_state, state.step, loss

    assert same(run(jit(update)), run(jax.jit(update)))
    assert searches == ["jit_update"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_keras_fits_with_a_planned_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "jax":
        pytest.skip("Keras was imported before with another backend")
    images = np.random.default_rng(0).normal(size=(16, 16, 16, 3)).astype(np.float32)
    labels = np.arange(16) % 4

    def fitted(planned: bool) -> tuple[Any, Any]:
        keras.utils.set_random_seed(0)
        convolutions = [keras.layers.Conv2D(8, 3, padding="same", activation="gelu") for _ in range(2)]
        layers = [keras.layers.Input((16, 16, 3)), *convolutions, keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dropout(0.1), keras.layers.Dense(4)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, jit_compile=not planned)
        if planned:
            model.train_step = jit(model.train_step, donate_argnums=0)
        history = model.fit(images, labels, batch_size=8, epochs=1, verbose=0)
        return model, [history.history["loss"], *map(np.asarray, model.get_weights())]

    (model, ours), (_, theirs) = fitted(True), fitted(False)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert len(model.train_step.reports) == 1


def test_export(searches: list[str]) -> None:
    exported = jax.export.export(jit(branches))(vector())
    again = jit(exported.call)
    assert same(again(vector()), jax.jit(branches)(vector()))
    assert [report.planned for report in again.reports] == [True]
    assert len(searches) == 1
