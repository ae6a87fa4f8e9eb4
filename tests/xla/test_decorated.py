"""Decorated functions are copied and pickled like functions."""

import copy
import functools
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import environment

import graphrl

X = jnp.linspace(0.1, 1.0, 3)
PROTOCOLS = (0, pickle.HIGHEST_PROTOCOL)
checkpointed = functools.partial(graphrl.checkpoint, budget=0.5, seconds=0.1, cache=False)
planned = functools.partial(graphrl.jit, seconds=0.1, cache=False)
DECORATORS = pytest.mark.parametrize("decorate", [checkpointed, planned])


def plain(x: jax.Array) -> jax.Array:
    """A function without decorator."""
    return jnp.sin(jnp.sin(x)).sum()


@checkpointed
def kept(x: jax.Array) -> jax.Array:
    return jnp.sin(x).sum()


@planned
def ordered(x: jax.Array) -> jax.Array:
    return jnp.sin(x).sum()


@planned
@checkpointed
def ordered_kept(x: jax.Array) -> jax.Array:
    return jnp.sin(x).sum()


@jax.checkpoint
@checkpointed
def kept_twice(x: jax.Array) -> jax.Array:
    return jnp.sin(x).sum()


class Model:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    @functools.partial(checkpointed, static_argnums=0)
    def loss(self, x: jax.Array) -> jax.Array:
        return (jnp.sin(x) * self.weight).sum()

    @functools.partial(planned, static_argnums=0)
    def step(self, x: jax.Array) -> jax.Array:
        return jnp.sin(x) * self.weight

    @staticmethod
    @checkpointed
    def static(x: jax.Array) -> jax.Array:
        return jnp.sin(x).sum()

    @classmethod
    @functools.partial(checkpointed, static_argnums=0)
    def of_class(cls, x: jax.Array) -> jax.Array:
        return jnp.sin(x).sum()


class Child(Model): ...


class Called:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, x: jax.Array) -> jax.Array:
        return (jnp.sin(x) * self.weight).sum()


class Wrapping:
    """An object that decorates its own method."""

    def __init__(self, decorate: Callable[..., Any], weight: float) -> None:
        self.weight = weight
        self.loss = decorate(self.loss)  # type: ignore[method-assign]

    def loss(self, x: jax.Array) -> jax.Array:
        return (jnp.sin(x) * self.weight).sum()


NAMED = [kept, ordered, ordered_kept, kept_twice, Child.loss, Model.step, Child.static]


@pytest.mark.parametrize("fn", NAMED)
def test_decorated_functions_of_a_module_are_pickled_by_name(fn: Any) -> None:
    for protocol in PROTOCOLS:
        assert pickle.loads(pickle.dumps(fn, protocol)) is fn
        assert len(pickle.dumps(fn, protocol)) < 200
    assert cloudpickle.loads(cloudpickle.dumps(fn)) is fn
    assert copy.copy(fn) is copy.deepcopy(fn) is fn


def test_methods_and_partial_functions_are_pickled_with_their_arguments() -> None:
    for fn in (Model(2.0).loss, Child(3.0).loss, Child(3.0).step, Model.of_class, Child.of_class):
        again = pickle.loads(pickle.dumps(fn))
        assert again.__func__ is fn.__func__
        assert vars(again.__self__) == vars(fn.__self__) or again.__self__ is fn.__self__
    again = pickle.loads(pickle.dumps(functools.partial(kept, X)))
    assert again.func is kept
    np.testing.assert_allclose(pickle.loads(pickle.dumps(Child(3.0).loss))(X), 3 * jnp.sin(X).sum(), rtol=1e-6)


@DECORATORS
@pytest.mark.parametrize("fn", [plain, functools.partial(plain), Called(3.0), Called(2.0).__call__])
def test_others_are_pickled_with_their_function(decorate: Callable[..., Any], fn: Callable[..., Any]) -> None:
    decorated = decorate(fn)
    for again in (*(pickle.loads(pickle.dumps(decorated, p)) for p in PROTOCOLS), copy.deepcopy(decorated)):
        np.testing.assert_allclose(again(X), fn(X), rtol=1e-6)
    assert copy.copy(decorated) is decorated


@DECORATORS
def test_a_method_that_its_object_has_decorated(decorate: Callable[..., Any]) -> None:
    owner = Wrapping(decorate, 2.0)
    for copied in (pickle.loads(pickle.dumps(owner)), copy.deepcopy(owner)):
        copied.weight = 3.0
        np.testing.assert_allclose(copied.loss(X), 3 * jnp.sin(X).sum(), rtol=1e-6)
    for loss in (pickle.loads(pickle.dumps(owner.loss)), copy.deepcopy(owner.loss)):
        np.testing.assert_allclose(loss(X), owner.loss(X), rtol=1e-6)


@DECORATORS
def test_functions_that_pickle_cannot_find_are_refused(decorate: Callable[..., Any]) -> None:
    fn = decorate(lambda x: x.sum())
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"Can't (pickle|get) .*<lambda>"):
        pickle.dumps(fn)
    assert cloudpickle.loads(cloudpickle.dumps(fn))(X) == X.sum()


def test_plans_go_with_pickles_by_value() -> None:
    fn = checkpointed(plain)
    fn(X)
    assert pickle.loads(pickle.dumps(fn)).report() == fn.report()


SCRIPT = """
import functools, multiprocessing, pickle, sys
from concurrent.futures import ProcessPoolExecutor
import cloudpickle, jax.numpy as jnp, numpy as np, graphrl

X = np.ones(3, np.float32)

@graphrl.checkpoint(budget=0.5, seconds=0.1, cache=False)
def kept(x, times=0):
    return jnp.sin(x).sum() if isinstance(kept, tuple) else (x + x).sum()

@graphrl.jit(cache=False)
def ordered(x):
    return (x + x).sum()

class Model:
    @graphrl.checkpoint(budget=0.5, seconds=0.1, cache=False, static_argnums=0)
    def loss(self, x):
        return (x + x).sum()

def own(x):
    return kept

if __name__ == "__main__":
    functions = kept, ordered, Model().loss, functools.partial(kept, times=1)
    for protocol in range(6):
        assert pickle.loads(pickle.dumps(kept, protocol)) is kept
        assert pickle.loads(pickle.dumps(Model.loss, protocol)) is Model.loss
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert [float(pool.submit(fn, X).result()) for fn in functions] == [6.0] * 4
        assert pool.submit(own, X).result() is kept
    kept(X)
    with open(sys.argv[1], "wb") as file:
        cloudpickle.dump(functions, file)
"""


def test_functions_of_main_go_to_other_processes(tmp_path: Path) -> None:
    script, file = tmp_path / "script.py", tmp_path / "functions"
    script.write_text(SCRIPT)
    own = environment(XDG_CACHE_HOME=str(tmp_path))
    subprocess.run([sys.executable, str(script), str(file)], check=True, env=own, cwd=tmp_path)
    functions = pickle.loads(file.read_bytes())  # by value: this process has another `__main__`
    assert [float(fn(np.ones(3, np.float32))) for fn in functions] == [6.0] * 4
    assert functions[3].func is functions[0]
    assert functions[0].__wrapped__.__globals__["kept"] is functions[0]
    assert functions[0].report().function == "kept"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(functions[0])
