"""The adapters, each against the library itself; skipped where that library is not installed."""

import copy
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search_graphs import random_dag
from walk_env import Walk

from graphrl.costs.problem import Problem
from graphrl.envs import adapters, specs
from graphrl.envs.base import Environment
from graphrl.envs.ordering import OrderingEnv, OrderingInstance
from graphrl.envs.ordering import make_instance as ordering_instance
from graphrl.envs.proposal import ProposalEnv, ProposalInstance, make_instance
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.padding import Sizes
from graphrl.solvers.chromosomes.brkga import Parameters

LINE = jnp.asarray([0, 1, 2, 4], jnp.float32)
KEY = jax.random.key(0)
SIZES = Sizes(ops=12, tensors=12, slots=12, rows=20, uses=24, controls=0, shares=0)


@pytest.fixture(autouse=True)
def lenient() -> Iterator[None]:
    """Accepts the libraries' warnings at import, and their reliance on jax's promotion of dtypes and ranks."""
    with (
        warnings.catch_warnings(),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        warnings.simplefilter("ignore")
        yield


def proposal() -> tuple[ProposalEnv, ProposalInstance]:
    env = ProposalEnv(Problem("makespan", 2), 45, Parameters(12, 3, 3))
    return env, jax.tree.map(jnp.asarray, make_instance(random_dag(0, 10), SIZES))


ORDERED = random_dag(0, 10)
ORDER = [jnp.int32(op) for op in ORDERED.arrays.topological]


def ordering() -> tuple[OrderingEnv, OrderingInstance]:
    return OrderingEnv(), jax.tree.map(jnp.asarray, ordering_instance(ORDERED, SIZES))


def rewards_of_order() -> list[float]:
    """Rewards of the steps of `ORDER`, by the environment itself."""
    env, instance = ordering()
    (state, _), step, rewards = jax.jit(env.reset)(KEY, instance), jax.jit(env.step), []
    for op in ORDER:
        state, timestep = step(KEY, state, op, instance)
        rewards.append(float(timestep.reward))
    assert rewards[:-1] == [0] * 9
    assert rewards[-1] < -0.99
    return rewards


@pytest.mark.parametrize("name", ["gymnax", "jumanji", "stoa", "gymnasium"])
def test_a_library_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)  # another test may have imported it
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(GraphrlError, match=rf"{name}.* is not installed: this adapter needs it \(pip install {name}"):
        getattr(adapters, f"to_{name}")(Walk(), LINE)


Step = tuple[bool, float, bool, bool]  # per step of an order: is the op legal, reward, terminated, truncated


def ordered_by_gymnax() -> Iterator[Step]:
    inner, instance = ordering()
    env = adapters.to_gymnax(inner, instance)
    assert env.num_actions == SIZES.ops
    observation, state = env.reset(KEY, instance)
    specs.validate(inner.observation_spec(instance), observation)
    for op in ORDER:
        legal = bool(observation.action_mask[op])
        observation, state, reward, terminated, truncated, _ = env.step(KEY, state, op, instance)
        yield legal, float(reward), bool(terminated), bool(truncated)
    assert int(state.state.step) == 0  # a new episode has started


def ordered_by_jumanji() -> Iterator[Step]:
    from jumanji.testing.env_not_smoke import check_env_does_not_smoke, check_env_specs_does_not_smoke

    env = adapters.to_jumanji(*ordering())
    check_env_specs_does_not_smoke(env)
    check_env_does_not_smoke(env)
    (state, timestep), step = jax.jit(env.reset)(KEY), jax.jit(env.step)
    for op in ORDER:
        legal = bool(timestep.observation.action_mask[op])
        state, timestep = step(state, op)
        env.observation_spec.validate(timestep.observation)
        last, ended = bool(timestep.last()), float(timestep.discount) == 0
        yield legal, float(timestep.reward), last and ended, last and not ended


def ordered_by_stoa() -> Iterator[Step]:
    inner, instance = ordering()
    env = adapters.to_stoa(inner, instance)
    env.environment_space()
    (state, timestep), step = jax.jit(env.reset)(KEY, instance), jax.jit(env.step)
    for op in ORDER:
        legal = bool(timestep.observation["action_mask"][op])
        state, timestep = step(state, op, instance)
        assert bool(env.observation_space().contains(timestep.observation))
        yield legal, float(timestep.reward), bool(timestep.terminated()), bool(timestep.truncated())


def ordered_by_gymnasium() -> Iterator[Step]:
    env = adapters.to_gymnasium(*ordering())
    observation, _ = env.reset(seed=0)
    for op in ORDER:
        legal = bool(observation["action_mask"][int(op)])
        observation, *answer, info = env.step(env.action_space.dtype.type(op))
        assert observation in env.observation_space
        yield legal, *answer
    assert info["peak"] > 0


@pytest.mark.parametrize("ordered", [ordered_by_gymnax, ordered_by_jumanji, ordered_by_stoa, ordered_by_gymnasium])
def test_an_order_earns_in_every_library_what_it_earns_here(ordered: Callable[[], Iterator[Step]]) -> None:
    pytest.importorskip(ordered.__name__.removeprefix("ordered_by_"))
    legal, rewards, terminated, truncated = zip(*ordered(), strict=True)
    assert all(legal)
    assert rewards == pytest.approx(rewards_of_order())
    assert (sum(terminated), terminated[-1], sum(truncated)) == (1, True, 0)


def test_gymnax_resets_itself_and_tells_ended_from_cut() -> None:
    pytest.importorskip("gymnax")
    env = adapters.to_gymnax(Walk(limit=3), LINE)
    assert (env.num_actions, env.name) == (2, "Walk")
    observation, state = env.reset(KEY)
    assert bool(env.observation_space(LINE).contains(observation))
    for steps in range(1, 4):
        observation, state, reward, terminated, truncated, info = env.step(KEY, state, 0, LINE)
        assert bool(truncated) == (steps == 3)
        assert not bool(terminated)
        assert float(reward) == 0
    assert int(state.state.steps) == 0
    np.testing.assert_array_equal(info["final_observation"].position, 0)


ENVS: dict[str, Callable[[], tuple[Environment[Any, Any, Any], Any]]] = {
    "walk": lambda: (Walk(), LINE),
    "proposal": proposal,
}


@pytest.mark.parametrize("name", ENVS)
def test_gymnax_in_its_own_wrapper_for_gymnasium(name: str) -> None:
    """Actions and observations are in the spaces that the environment declares."""
    pytest.importorskip("gymnax")
    pytest.importorskip("gymnasium")
    from gymnax.wrappers.gym import GymnaxToGymWrapper  # type: ignore[import-untyped]

    env, instance = ENVS[name]()
    wrapped = GymnaxToGymWrapper(adapters.to_gymnax(env, instance))
    observation, _ = wrapped.reset(seed=1)
    for _ in range(8):
        assert observation in wrapped.observation_space
        action = wrapped.action_space.sample()
        specs.validate(env.action_spec(instance), np.asarray(action, np.int32))
        observation, *_ = wrapped.step(action)


def test_gymnax_spaces_have_the_names_and_bounds_of_the_specification() -> None:
    pytest.importorskip("gymnax")
    env = adapters.to_gymnax(Walk(), LINE)
    space = env.observation_space(LINE)
    assert space.spaces._fields == ("position", "seen", "action_mask")
    drawn = [space.sample(key) for key in jax.random.split(KEY, 40)]
    for view in drawn:
        specs.validate(Walk().observation_spec(LINE), view)
        assert bool(space.contains(view))
    assert {int(view.position) for view in drawn} == set(range(len(LINE)))
    assert {bool(flag) for view in drawn for flag in view.action_mask} == {True, False}
    assert not bool(space.contains(drawn[0]._replace(position=jnp.int32(len(LINE)))))


def test_jumanji_says_last_with_a_discount_of_what_follows() -> None:
    pytest.importorskip("jumanji")
    from jumanji.testing.env_not_smoke import check_env_does_not_smoke, check_env_specs_does_not_smoke

    env = adapters.to_jumanji(Walk(limit=1), LINE)
    check_env_specs_does_not_smoke(env)
    check_env_does_not_smoke(env)
    state, first = jax.jit(env.reset)(KEY)
    assert bool(first.first())
    _, timestep = jax.jit(env.step)(state, jnp.int32(0))
    assert bool(timestep.last())
    assert float(timestep.discount) == 1


def test_jumanji_in_its_own_wrapper_for_gymnasium() -> None:
    pytest.importorskip("jumanji")
    from jumanji.wrappers import JumanjiToGymWrapper

    env = JumanjiToGymWrapper(adapters.to_jumanji(*proposal()))
    observation, _ = env.reset(seed=1)
    assert observation in env.observation_space
    observation, reward, *flags, _ = env.step(env.action_space.sample())
    assert observation in env.observation_space
    assert [type(part) for part in (reward, *flags)] == [float, bool, bool]


def test_stoa_tells_ended_from_cut() -> None:
    pytest.importorskip("stoa")
    from stoa.core_wrappers.auto_reset import AutoResetWrapper

    env = AutoResetWrapper(adapters.to_stoa(Walk(limit=1), LINE), next_obs_in_extras=True)
    state, first = jax.jit(env.reset)(KEY)
    assert bool(first.first())
    assert bool(env.observation_space().contains(first.observation))
    _, timestep = jax.jit(env.step)(state, env.action_space().sample(KEY))
    assert bool(timestep.truncated())
    assert not bool(timestep.terminated())


@pytest.mark.parametrize("name", ENVS)
def test_gymnasium_passes_its_own_checker(name: str) -> None:
    """Equal seeds give equal observations, too."""
    pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    env = adapters.to_gymnasium(*ENVS[name]())
    check_env(env, skip_render_check=True)
    env.reset()
    assert isinstance(env.step(env.action_space.sample())[1], float)


def test_gymnasium_needs_a_reset_before_the_first_step_and_after_an_end() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    env = adapters.to_gymnasium(Walk(limit=2), LINE)
    for _ in range(2):
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"^no episode has started: call reset first"):
            env.step(0)
        env.reset(seed=0)
        assert not env.step(0)[3]
        assert env.step(0)[3]


def test_gymnasium_refuses_other_actions_in_one_line() -> None:
    pytest.importorskip("gymnasium")
    env = adapters.to_gymnasium(Walk(), LINE)
    env.reset(seed=0)
    for action in ("x", None, 2, -1, 0.5, float("nan"), [0], {"a": 0}, 2**32, 2**70):
        with pytest.raises(GraphrlError, match=r"^the action .*: must be .*$"):
            env.step(action)
    for allowed in (1, np.int64(1), jnp.int32(1), np.asarray(1)):
        env.reset()
        env.step(allowed)


def pickled(env: Any) -> Any:
    return pickle.loads(pickle.dumps(env))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_gymnasium_is_copied_at_any_time(copied: Any) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import data_equivalence

    with pytest.raises(gymnasium.error.ResetNeeded):
        copied(adapters.to_gymnasium(Walk(), LINE)).step(0)
    env = adapters.to_gymnasium(*ordering())
    env.action_space.seed(5)
    env.reset(seed=3)
    env.step(int(ORDER[0]))
    ends = []
    for one in (env, copied(env)):  # one after the other: neither affects the other
        answers = [one.step(int(op)) for op in ORDER[1:]]
        ends.append((answers, one.action_space.sample(), one.reset(), one.np_random.integers(1000)))
    assert data_equivalence(ends[0], ends[1], exact=True)
    assert ends[0][0][-1][2]


def test_gymnasium_in_its_own_vector_environment() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    env = adapters.to_gymnasium(*ordering())
    both = gymnasium.vector.SyncVectorEnv([lambda: copy.copy(env), lambda: pickled(env)])
    observation, _ = both.reset(seed=0)
    for op in ORDER:
        observation, _, ended, cut, _ = both.step(np.full(2, int(op)))
    assert ended.all()
    assert not cut.any()
    assert observation in both.observation_space
    assert not both.step(np.zeros(2, int))[2].any()  # new episodes have started


@pytest.mark.parametrize("name", ["walk", "proposal", "ordering"])
def test_flat_gymnasium_has_a_vector_that_ends_with_the_mask(name: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    inner, instance = {**ENVS, "ordering": ordering}[name]()
    env, trees = (adapters.to_gymnasium(inner, instance, flat=flat) for flat in (True, False))
    check_env(env, skip_render_check=True)
    vector, tree = env.reset(seed=1)[0], trees.reset(seed=1)[0]
    masks = env.action_masks()
    assert vector.dtype == np.float32
    np.testing.assert_array_equal(masks, trees.action_masks())
    np.testing.assert_array_equal(vector[-len(masks) :], masks)
    names = [key for key in inner.observation_spec(instance)._fields if key != "action_mask"]
    if name != "proposal":  # whose observation has a tree in it
        np.testing.assert_array_equal(vector[: -len(masks)], np.concatenate([np.ravel(tree[key]) for key in names]))
    space = env.action_space
    options = space.nvec.sum() if isinstance(space, gymnasium.spaces.MultiDiscrete) else space.n
    assert len(masks) == options


def test_flat_gymnasium_plays_as_the_environment_does() -> None:
    pytest.importorskip("gymnasium")
    env = adapters.to_gymnasium(*ordering(), flat=True)
    env.reset(seed=0)
    rewards = []
    for op in ORDER:
        assert env.action_masks()[int(op)]
        rewards.append(env.step(int(op))[1])
    assert rewards == pytest.approx(rewards_of_order())


def batch_of_orderings() -> Any:
    graphs = [random_dag(seed, 10) for seed in range(3)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(ordering_instance(graph, SIZES) for graph in graphs))


def test_a_vector_of_no_environments_is_refused() -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(ProblemError, match="num_envs is 0: must be at least 1"):
        adapters.to_gymnasium_vector(OrderingEnv(), batch_of_orderings(), num_envs=0)


@pytest.mark.parametrize("flat", [False, True])
def test_a_vector_environment_equals_its_environments_one_by_one(flat: bool) -> None:
    pytest.importorskip("gymnasium")
    instances = batch_of_orderings()
    both = adapters.to_gymnasium_vector(OrderingEnv(), instances, flat=flat)
    ones = [
        adapters.to_gymnasium(OrderingEnv(), jax.tree.map(lambda x, i=i: x[i], instances), flat=flat) for i in range(3)
    ]
    observation, _ = both.reset(seed=0)
    for one in ones:
        one.reset(seed=0)
    for step in range(10):
        assert observation in both.observation_space
        actions = both.action_masks().argmax(1)
        observation, rewards, ended, cut, infos = both.step(actions)
        singles = [one.step(int(action)) for one, action in zip(ones, actions, strict=True)]
        assert rewards == pytest.approx([single[1] for single in singles])
        assert ended.tolist() == [single[2] for single in singles] == [step == 9] * 3
        assert not cut.any()
    finals = [jax.tree.leaves(single[0]) for single in singles]
    for final, alone in zip(infos["final_obs"], finals, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(final), alone, strict=True))
    for key in ("live", "peak"):
        np.testing.assert_array_equal(infos["final_info"][key], [single[4][key] for single in singles])
        assert infos["final_info"][f"_{key}"].all()
    assert infos["_final_info"].all()
    assert both.action_masks().any(1).all()  # new episodes have started


def test_a_vector_environment_with_more_models_than_environments_draws_them() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    adapters.register_in_gymnasium()
    lengths = (3, 5, 8)
    models = [random_dag(seed, ops) for seed, ops in enumerate(lengths)]
    few = gymnasium.make_vec("graphrl/Ordering-v0", num_envs=2, models=models)
    few.reset(seed=0)
    ages, drawn = np.zeros(2, int), []
    for _ in range(60):
        masks = few.unwrapped.action_masks()
        _, rewards, ended, _, infos = few.step(masks.argmax(1))
        ages += 1
        assert (rewards[~ended] == 0).all()
        if ended.any():
            np.testing.assert_array_equal(infos["final_info"]["peak"] > 0, ended)
        drawn += ages[ended].tolist()
        ages[ended] = 0
    assert set(drawn) == set(lengths)  # a legal episode has a step for each op


def test_gymnasium_makes_environments_by_id_and_draws_them() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    adapters.register_in_gymnasium()
    env = gymnasium.make("graphrl/Ordering-v0", model=ORDERED, render_mode="rgb_array")
    env.reset(seed=0)
    blank = env.render()
    env.step(int(ORDER[0]))
    drawn = env.render()
    assert blank.dtype == drawn.dtype == np.uint8
    assert blank.min() == 255
    assert drawn.min() < 100
    many = gymnasium.make_vec("graphrl/Ordering-v0", num_envs=3, models=[ORDERED, ORDERED])
    assert many.reset(seed=0)[0].shape[0] == 3
    with pytest.raises(GraphrlError, match="many environments have no picture"):
        gymnasium.make_vec("graphrl/Ordering-v0", num_envs=1, models=[ORDERED], render_mode="rgb_array")
    with pytest.raises(GraphrlError, match="Ordering-v0 has no option 'colour': it has none"):
        gymnasium.make("graphrl/Ordering-v0", model=ORDERED, colour=1)
    with pytest.raises(GraphrlError, match=r"^render_mode is 'human': must be 'rgb_array' or None$"):
        adapters.to_gymnasium(*ordering(), render_mode="human")
    with pytest.raises(GraphrlError, match=r"pass model=\.\.\.$"):
        adapters.to_gymnasium(*ordering(), render_mode="rgb_array")


def test_gymnax_wrappers_take_the_flat_environment() -> None:
    pytest.importorskip("gymnax")
    from gymnax.wrappers.purerl import FlattenObservationWrapper  # type: ignore[import-untyped]

    inner, instance = ordering()
    env = FlattenObservationWrapper(adapters.to_gymnax(inner, instance, flat=True))
    observation, state = env.reset(KEY, instance)
    assert observation.shape == env.observation_space(instance).shape
    assert bool(observation[-SIZES.ops :][int(ORDER[0])])
    observation, state, reward, *_ = env.step(KEY, state, ORDER[0], instance)
    assert float(reward) == 0
    with pytest.raises(
        GraphrlError, match=r"^an action is int32\[12, 3\], not one choice: it has no number of actions$"
    ):
        _ = adapters.to_gymnax(*proposal()).num_actions


@pytest.mark.slow
def test_maskable_ppo_learns_without_a_wrapper() -> None:
    """With the real package, where it is installed (it needs torch)."""
    sb3 = pytest.importorskip("sb3_contrib")
    gymnasium = pytest.importorskip("gymnasium")
    adapters.register_in_gymnasium()
    env = gymnasium.make("graphrl/Ordering-v0", model=ORDERED)
    agent = sb3.MaskablePPO("MlpPolicy", env, n_steps=64, batch_size=64, seed=0).learn(192)
    observation, _ = env.reset(seed=0)
    for step in range(1, 11):
        action, _ = agent.predict(observation, action_masks=env.unwrapped.action_masks(), deterministic=True)
        observation, reward, ended, *_ = env.step(action)
        assert ended == (step == 10)
    assert reward < 0
