"""Properties of all environments: specifications, the registry, AutoReset, and faults that check_env finds."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from walk_env import State, View, Walk

import graphrl
from graphrl.envs import registry, specs
from graphrl.envs.base import AutoReset, TimeStep
from graphrl.envs.testing import EnvError, check_env
from graphrl.errors import GraphrlError

LINE = jnp.asarray([0, 1, 2, 4], jnp.float32)
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("spec", "value", "fault"),
    [
        (specs.floats((2,)), np.zeros(3, np.float32), r"x has shape \(3,\)"),
        (specs.floats((2,)), np.zeros(2, np.int32), "dtype int32: must be"),
        (specs.floats((2,)), np.array([0, np.nan], np.float32), "not finite"),
        (specs.choices((2,), 3), np.array([0, 3], np.int32), "from 0 to 3: must be from 0 to 2"),
        ({"a": specs.booleans(())}, {"a": np.zeros((), np.int32)}, r"x\['a'\] has shape"),
        ({"a": specs.booleans(())}, np.zeros((), bool), "x has the structure"),
    ],
)
def test_a_value_that_is_not_as_specified_is_refused(spec: Any, value: Any, fault: str) -> None:
    with pytest.raises(specs.SpecError, match=fault):
        specs.validate(spec, value, "x")


def test_samples_are_as_specified_and_take_every_value() -> None:
    spec = {
        "choice": specs.choices((500,), 3),
        "range": specs.integers((500,), -2, 2),
        "unit": specs.floats((500,), 0, 1),
        "any": specs.floats((500,)),
        "flag": specs.booleans((500,)),
    }
    values = specs.sample(spec, KEY)
    specs.validate(spec, values)
    assert set(np.unique(values["choice"])) == {0, 1, 2}
    assert set(np.unique(values["range"])) == {-2, -1, 0, 1, 2}
    assert set(np.unique(values["flag"])) == {False, True}
    assert spec["choice"].num_values == 3
    with pytest.raises(specs.SpecError, match="no number of values"):
        _ = spec["unit"].num_values


def test_make_knows_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRY_POINTS", dict(registry._ENTRY_POINTS))
    registry.register("Walk-v0", "walk_env:Walk")
    assert graphrl.make("Walk-v0", limit=3).limit == 3
    assert "Proposal-v0" in registry.registered()
    assert type(graphrl.make("Proposal-v0")).__name__ == "ProposalEnv"
    choices = "known are Compile-v0, MemoryMap-v0, Ordering-v0, Proposal-v0, Sharding-v0, Walk-v0"
    with pytest.raises(GraphrlError, match=rf"'Proposal-v1': {choices}"):
        graphrl.make("Proposal-v1")
    with pytest.raises(GraphrlError, match="Walk-v0 has no option 'limits': known are limit"):
        graphrl.make("Walk-v0", limits=3)
    with pytest.raises(GraphrlError, match="registered already"):
        registry.register("Walk-v0", "walk_env:Walk")
    with pytest.raises(GraphrlError, match="must be 'module:Class'"):
        registry.register("Walk-v1", "walk_env")


def test_auto_reset_starts_the_next_episode_and_keeps_the_end_of_the_last() -> None:
    env: AutoReset[State, View, jax.Array] = AutoReset(Walk())
    state, first = jax.jit(env.reset)(KEY, LINE)
    np.testing.assert_array_equal(first.info["final_observation"].seen, first.observation.seen)
    positions, step = [int(state.position)], jax.jit(env.step)
    while True:
        state, timestep = step(jax.random.fold_in(KEY, len(positions)), state, jnp.int32(1), LINE)
        positions.append(int(timestep.info["final_observation"].position))
        if timestep.done:
            break
        assert int(timestep.observation.position) == positions[-1]
    assert positions[-1] == 3
    assert float(timestep.reward) == 4
    assert float(timestep.discount) == 0
    assert int(timestep.observation.position) == int(state.position) < 2
    assert int(state.steps) == 0


def test_auto_reset_after_a_cut_episode_does_not_say_that_no_reward_followed() -> None:
    env: AutoReset[State, View, jax.Array] = AutoReset(Walk(limit=1))
    state, _ = env.reset(KEY, LINE)
    state, timestep = env.step(KEY, state, jnp.int32(0), LINE)
    assert bool(timestep.truncated)
    assert float(timestep.discount) == 1
    assert int(state.steps) == 0


def test_check_env_passes_what_keeps_the_contract() -> None:
    check_env(Walk(), LINE)


Change = Callable[[TimeStep[View]], TimeStep[View]]


def seen(**parts: Any) -> Change:
    """Replaces parts of the observation."""
    return lambda step: dataclasses.replace(step, observation=step.observation._replace(**parts))


CALLS = itertools.count()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda step: dataclasses.replace(step, reward=jnp.float32(jnp.nan)),
            "reward has an element that is not finite",
        ),
        (lambda step: dataclasses.replace(step, reward=jnp.float32(next(CALLS))), "vmap of it is not a loop"),
        (
            lambda step: dataclasses.replace(step, info={"more": step.reward}),
            r"timestep.info\['steps'\] is int32 after reset, missing after step",
        ),
        (seen(position=jnp.int32(10)), "observation.position has elements"),
        (seen(action_mask=jnp.zeros(2, bool)), "action_mask leaves no choice"),
    ],
)
def test_check_env_finds_what_breaks_it(change: Change, fault: str) -> None:
    class Broken(Walk):
        def step(
            self, key: jax.Array, state: State, action: jax.Array, instance: jax.Array
        ) -> tuple[State, TimeStep[View]]:
            state, timestep = super().step(key, state, action, instance)
            return state, change(timestep)

    with pytest.raises((EnvError, specs.SpecError), match=fault):
        check_env(Broken(), LINE)


def test_check_env_names_what_changes_its_type_between_reset_and_step() -> None:
    class Python(Walk):
        def reset(self, key: jax.Array, instance: jax.Array) -> tuple[State, TimeStep[View]]:
            state, timestep = super().reset(key, instance)
            return state._replace(position=0), timestep  # type: ignore[arg-type]

    with pytest.raises(EnvError, match=r"state\.position is a weak int32 after reset, int32 after step"):
        check_env(Python(), LINE)


def test_check_env_takes_instances_of_numpy() -> None:
    line = np.asarray(LINE)
    check_env(Weigh(padded=True), line, wider=np.append(line, np.zeros(8, np.float32)))
    check_env(Walk(), line)


def test_check_env_requires_masks_of_the_action() -> None:
    class Pair(Walk):
        def action_spec(self, instance: jax.Array) -> specs.ArraySpec:
            return specs.choices((2,), 2)

        def step(
            self, key: jax.Array, state: State, action: jax.Array, instance: jax.Array
        ) -> tuple[State, TimeStep[View]]:
            return super().step(key, state, action[0], instance)

    with pytest.raises(specs.SpecError, match=r"action_mask has shape \(2,\) and dtype bool: must be \(2, 2\)"):
        check_env(Pair(), LINE)


class Weigh:
    """One step that earns the sum of the weights. Actions have an element for each of them, or are a single one."""

    def __init__(self, *, padded: bool, counted: bool = False) -> None:
        self.padded, self.counted = padded, counted

    def reset(self, key: jax.Array, instance: jax.Array) -> tuple[jax.Array, TimeStep[dict[str, jax.Array]]]:
        no = jnp.asarray(False)
        return jnp.float32(0), TimeStep({"sum": instance.sum()}, jnp.float32(0), no, no, {})

    def step(
        self, key: jax.Array, state: jax.Array, action: jax.Array, instance: jax.Array
    ) -> tuple[jax.Array, TimeStep[dict[str, jax.Array]]]:
        reward = (action.astype(jnp.float32) * instance).sum() + self.counted * instance.shape[0]
        return state, TimeStep({"sum": instance.sum()}, reward, jnp.asarray(True), jnp.asarray(False), {})

    def observation_spec(self, instance: jax.Array) -> Any:
        return {"sum": specs.floats(())}

    def action_spec(self, instance: jax.Array) -> specs.ArraySpec:
        return specs.choices(instance.shape if self.padded else (), 2)


@pytest.mark.parametrize("padded", [False, True])
def test_check_env_finds_rewards_that_depend_on_padding(padded: bool) -> None:
    wider = jnp.append(LINE, jnp.zeros(8))
    check_env(Weigh(padded=padded), LINE, wider=wider)
    with pytest.raises(EnvError, match="padding changes the reward"):
        check_env(Weigh(padded=padded, counted=True), LINE, wider=wider)
    with pytest.raises(EnvError, match="the wider instance has arrays of the same shapes"):
        check_env(Weigh(padded=padded), LINE, wider=LINE)
