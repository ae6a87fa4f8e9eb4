"""Python's collector is off inside the context, and afterwards as it was."""

import gc
import threading
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

import graphrl
from graphrl.process import pause_gc


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_within_and_restored_also_after_an_error() -> None:
    with pause_gc(), pause_gc():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with pause_gc():
        pass
    assert not gc.isenabled()
    gc.enable()
    with pytest.raises(KeyboardInterrupt), pause_gc():
        raise KeyboardInterrupt
    assert gc.isenabled()


def test_it_is_off_until_the_last_thread_leaves() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with pause_gc():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with pause_gc():
        thread.start()
        assert entered.wait(60)
    assert not gc.isenabled()
    leave.set()
    thread.join(60)
    assert gc.isenabled()


def test_a_checkpointed_function_is_traced_and_planned_without_it() -> None:
    states = []

    def loss(x: jax.Array) -> jax.Array:
        states.append(gc.isenabled())
        return jnp.sin(jnp.sin(x)).sum()

    jax.grad(graphrl.checkpoint(loss, slowdown=0.5, seconds=0.1, cache=False))(jnp.ones(4))
    assert states == [False]
    assert gc.isenabled()
