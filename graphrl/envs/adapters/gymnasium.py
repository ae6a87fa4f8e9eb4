"""Converts environments to gymnasium's interface: one episode at a time, or many in one compiled call."""

import contextlib
import copy
import dataclasses
import functools
import io
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs.adapters.common import Flattened, as_dictionaries, bounds, choices, import_library, map_spec
from graphrl.envs.base import FINAL, AutoReset, Environment, TimeStep
from graphrl.envs.graph_environment import Generator
from graphrl.envs.registry import make, registered
from graphrl.envs.specs import ArraySpec, SpecError, validate
from graphrl.errors import GraphrlError, PlanError, ProblemError

_BLANK = 480, 640  # pixels of a picture without a plan


def to_gymnasium(
    env: Environment[Any, Any, Any],
    instance: Any,
    *,
    flat: bool = False,
    model: Any = None,
    render_mode: str | None = None,
) -> Any:
    """Converts an environment with one instance to a gymnasium environment: NumPy in, NumPy out, one episode at a time.

    It can be pickled and copied at any time: the copy continues independently from the same state and shares the
    compiled functions. Before the first `reset` and after the end of an episode, `step` raises gymnasium's
    `ResetNeeded`. It raises a `SpecError` for an action that does not fit `action_space`. `action_masks()` returns
    which options are allowed now, as sb3-contrib's MaskablePPO asks for it.

    Args:
      env: the environment.
      instance: an instance, without a batch axis.
      flat: True makes observations a vector and actions `Discrete` or `MultiDiscrete` (`common.Flattened`); else they
        are dictionaries.
      model: the model of the instance, from which `render` makes its picture.
      render_mode: "rgb_array" or None.

    Raises:
      GraphrlError: gymnasium is not installed; or `render_mode` is unknown, or needs a model.
    """
    gymnasium = import_library("gymnasium", "gymnasium")
    if render_mode not in (None, "rgb_array"):
        raise GraphrlError(f"render_mode is {render_mode!r}: must be 'rgb_array' or None")
    if render_mode is not None and model is None:
        raise GraphrlError("render_mode='rgb_array' draws a plan of the model: pass model=...")
    played = Flattened(env) if flat else env
    programs = _programs(played)
    action_spec = played.action_spec(instance)
    on_device = jax.tree.map(jnp.asarray, instance)

    class Gymnasium(gymnasium.Env):  # type: ignore[name-defined]
        metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 1}  # noqa: RUF012  (gymnasium's name)

        def __init__(self) -> None:
            self.observation_space, self.action_space = _env_spaces(gymnasium.spaces, played, instance)
            self.render_mode = render_mode
            self._state: Any = None  # state of the current episode
            self._shown: Any = None  # last state and observation, also after the end of an episode

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            super().reset(seed=seed)
            key = jax.random.key(int(self.np_random.integers(2**32)))
            self._key, self._state, timestep = programs.reset(key, on_device)
            self._shown = self._state, timestep.observation
            return _host(timestep.observation), _host(timestep.info)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
            if self._state is None:
                raise gymnasium.error.ResetNeeded("no episode has started: call reset first, also after the end of one")
            chosen = _action(action_spec, action)
            self._key, state, timestep = programs.step(self._key, self._state, chosen, on_device)
            ended, cut = bool(timestep.terminated), bool(timestep.truncated)
            self._state = None if ended or cut else state
            self._shown = state, timestep.observation
            return _host(timestep.observation), float(timestep.reward), ended, cut, _host(timestep.info)

        def action_masks(self) -> np.ndarray:
            """Which options are allowed now: `[options]` bool, those of each choice one after another."""
            if self._shown is None:
                raise gymnasium.error.ResetNeeded("no episode has started: call reset first")
            return _mask(self._shown[1], Flattened(env), instance)

        def render(self) -> Any:
            if render_mode is None or self._shown is None:
                return None
            drawing: Any = env
            with contextlib.suppress(PlanError):
                return _pixels(drawing.render(model, instance, self._shown[0]))
            return np.full((*_BLANK, 3), 255, np.uint8)  # nothing is decided yet

        def __reduce__(self) -> Any:
            options = {"flat": flat, "model": model, "render_mode": render_mode}
            return functools.partial(to_gymnasium, env, instance, **options), (), self.__dict__

        def __copy__(self) -> Any:
            copied = type(self)()
            copied.__dict__.update(copy.deepcopy(self.__dict__))
            return copied

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return copy.copy(self)

    return Gymnasium()


def to_gymnasium_vector(
    env: Environment[Any, Any, Any], instances: Any, *, flat: bool = False, num_envs: int | None = None
) -> Any:
    """Converts an environment with a batch of instances to a `gymnasium.vector.VectorEnv`: one compiled call a step.

    An episode that ends starts again in the same step (`AutoresetMode.SAME_STEP`). Infos then have its last observation
    as "final_obs" and its last info as "final_info", such as `infos["final_info"]["peak"]`, `[num_envs]`; the masks
    "_final_obs" and "_final_info" are True for the environments that ended. Infos have nothing else. `action_masks()`
    returns `[num_envs, options]` bool.

    Args:
      env: the environment.
      instances: instances with a leading axis g.
      flat: see `to_gymnasium`.
      num_envs: number of environments, each of which draws one of the instances whenever an episode starts. By default
        there are g, and each keeps its own instance, which is faster.

    Raises:
      GraphrlError: gymnasium is not installed.
      ProblemError: `num_envs` is below 1.
    """
    if num_envs is not None and num_envs < 1:
        raise ProblemError(f"num_envs is {num_envs}: must be at least 1")
    gymnasium = import_library("gymnasium", "gymnasium")
    vector = import_library("gymnasium.vector", "gymnasium")
    utils = import_library("gymnasium.vector.utils", "gymnasium")
    count = jax.tree.leaves(instances)[0].shape[0] if num_envs is None else num_envs
    one = jax.tree.map(lambda leaf: leaf[0], instances)
    played: Any = Flattened(env) if flat else env
    restarted: Any = played if num_envs is None else _Drawing(played)
    programs = _programs(AutoReset(restarted), batched=True, shared=num_envs is not None)
    on_device = jax.tree.map(jnp.asarray, instances)
    spec = jax.tree.map(lambda leaf: dataclasses.replace(leaf, shape=(count, *leaf.shape)), played.action_spec(one))

    class Vector(vector.VectorEnv):  # type: ignore[name-defined]
        metadata: dict[str, Any] = {"autoreset_mode": vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

        def __init__(self) -> None:
            self.num_envs = count
            self._state: Any = None
            self.single_observation_space, self.single_action_space = _env_spaces(gymnasium.spaces, played, one)
            self.observation_space, self.action_space = (
                utils.batch_space(space, count) for space in (self.single_observation_space, self.single_action_space)
            )

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            super().reset(seed=seed)
            keys = jax.random.split(jax.random.key(int(self.np_random.integers(2**32))), count)
            self._keys, self._state, timestep = programs.reset(keys, on_device)
            self._observation = timestep.observation
            return _host(timestep.observation), {}

        def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
            if self._state is None:
                raise gymnasium.error.ResetNeeded("no episode has started: call reset first")
            self._keys, self._state, timestep = programs.step(
                self._keys, self._state, _action(spec, actions), on_device
            )
            self._observation = timestep.observation
            ended, cut = np.asarray(timestep.terminated), np.asarray(timestep.truncated)
            infos: dict[str, Any] = {}
            if (done := ended | cut).any():
                info = _host(timestep.info)
                final = info.pop(FINAL)
                infos = {"final_obs": np.full(count, None, object), "_final_obs": done}
                infos |= _masked({"final_info": info}, done)
                for index in np.flatnonzero(done):
                    infos["final_obs"][index] = jax.tree.map(lambda leaf, index=index: leaf[index], final)
            return _host(timestep.observation), np.asarray(timestep.reward), ended, cut, infos

        def action_masks(self) -> np.ndarray:
            """Which options are allowed now: `[num_envs, options]` bool."""
            if self._state is None:
                raise gymnasium.error.ResetNeeded("no episode has started: call reset first")
            return _mask(self._observation, Flattened(env), one)

    return Vector()


def make_gymnasium(
    env_id: str, model: Any, *args: Any, flat: bool = True, render_mode: str | None = None, **options: Any
) -> Any:
    """Makes a gymnasium environment of a model: what `gymnasium.make("graphrl/Ordering-v0", model=...)` calls.

    Args:
      env_id: one of `registry.registered()`.
      model, *args: see `GraphEnvironment.instance`.
      flat, render_mode: see `to_gymnasium`.
      **options: options of the environment.
    """
    env = make(env_id, **options)
    model_of_plans = (model, *args) if args else model
    return to_gymnasium(env, env.instance(model, *args), flat=flat, model=model_of_plans, render_mode=render_mode)


def make_gymnasium_vector(
    env_id: str, models: Any, num_envs: int = 1, *, flat: bool = True, render_mode: str | None = None, **options: Any
) -> Any:
    """Makes a vector environment: what `gymnasium.make_vec("graphrl/Ordering-v0", num_envs=64, models=...)` calls.

    The models' instances take turns if there are at most `num_envs`. If there are more, each environment draws one of
    them whenever an episode starts.

    Raises:
      GraphrlError: there is a `render_mode`, or a model cannot be read.
    """
    if render_mode is not None:
        raise GraphrlError(f"render_mode is {render_mode!r}: many environments have no picture, see gymnasium.make")
    env = make(env_id, **options)
    instances = env.instances(models)
    count = jax.tree.leaves(instances)[0].shape[0]
    if count > num_envs:
        return to_gymnasium_vector(env, instances, flat=flat, num_envs=num_envs)
    index = jnp.arange(num_envs) % count
    return to_gymnasium_vector(env, jax.tree.map(lambda leaf: leaf[index], instances), flat=flat)


def register_in_gymnasium() -> None:
    """Registers the environments in gymnasium, as "graphrl/Ordering-v0" and so on, for `gymnasium.make` and `make_vec`.

    Raises:
      GraphrlError: gymnasium is not installed.
    """
    gymnasium = import_library("gymnasium", "gymnasium")
    for id in registered():
        gymnasium.register(
            f"graphrl/{id}",
            entry_point="graphrl.envs.adapters.gymnasium:make_gymnasium",
            vector_entry_point="graphrl.envs.adapters.gymnasium:make_gymnasium_vector",
            kwargs={"env_id": id},
        )


class _Programs(NamedTuple):
    """Compiled reset and step, which split their key and return the other half first."""

    reset: Callable[..., Any]  # (key, instance) -> key, state, timestep
    step: Callable[..., Any]  # (key, state, action, instance) -> key, state, timestep


@dataclasses.dataclass(frozen=True)
class _Drawing:
    """An environment whose resets draw one of several instances; its methods receive all of them, on a leading axis."""

    env: Any

    def reset(self, key: jax.Array, instances: Any) -> tuple[Any, TimeStep[Any]]:
        draw_key, reset_key = jax.random.split(key)
        generator = Generator(instances)
        index = jax.random.randint(draw_key, (), 0, generator.count)
        state, timestep = self.env.reset(reset_key, generator[index])
        return (index, state), timestep

    def step(self, key: jax.Array, state: Any, action: Any, instances: Any) -> tuple[Any, TimeStep[Any]]:
        index, state = state
        state, timestep = self.env.step(key, state, action, Generator(instances)[index])
        return (index, state), timestep


def _programs(env: Any, *, batched: bool = False, shared: bool = False) -> _Programs:
    """Compiles; if `batched`, for many environments, which have an instance each, or all the same if `shared`."""

    def reset(key: jax.Array, instance: Any) -> Any:
        key, now = jax.random.split(key)
        return key, *env.reset(now, instance)

    def step(key: jax.Array, state: Any, action: Any, instance: Any) -> Any:
        key, now = jax.random.split(key)
        return key, *env.step(now, state, action, instance)

    axis = None if shared else 0
    if batched:
        reset, step = jax.vmap(reset, (0, axis)), jax.vmap(step, (0, 0, 0, axis))
    return _Programs(_without_copies(reset), _without_copies(step))


def _without_copies(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function whose last argument is an instance, for one shape of arguments.

    Results that are arrays of the instance, such as an observation's relations of ops, are not computed: a compiled
    program would copy them, which can take much longer than a step.
    """
    places: list[int | None] = []  # of each result among the instance's arrays; None: the program computes it
    structure: Any = None

    @jax.jit
    def computed(*arguments: Any) -> list[jax.Array]:
        nonlocal places, structure
        results, structure = jax.tree.flatten(function(*arguments))
        given = jax.tree.leaves(arguments[-1])
        places = [next((i for i, one in enumerate(given) if one is result), None) for result in results]
        return [result for result, place in zip(results, places, strict=True) if place is None]

    def call(*arguments: Any) -> Any:
        new, given = iter(computed(*arguments)), jax.tree.leaves(arguments[-1])
        return jax.tree.unflatten(structure, [next(new) if place is None else given[place] for place in places])

    return call


def _masked(infos: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
    """Sets infos to 0 where no episode ended; adds gymnasium's masks "_key"."""
    masked: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            masked[key] = _masked(value, done)
        else:
            masked[key] = np.where(done.reshape(-1, *[1] * (value.ndim - 1)), value, np.zeros_like(value))
        masked[f"_{key}"] = done
    return masked


def _mask(observation: Any, flattened: Flattened, instance: Any) -> np.ndarray:
    """Returns the mask of actions of an observation, or of a batch of them: `[..., options]` bool."""
    options = int(flattened.options(instance).sum())
    if isinstance(observation, jax.Array):  # a flat one
        return np.asarray(observation[..., -options:] > 0.5)
    mask, spec = getattr(observation, "action_mask", None), flattened.env.observation_spec(instance)
    if mask is None:
        return np.ones(options, bool)
    leaves = zip(jax.tree.leaves(mask), jax.tree.leaves(spec.action_mask), strict=True)
    flat = [np.asarray(leaf).reshape(*leaf.shape[: leaf.ndim - len(one.shape)], -1) for leaf, one in leaves]
    return np.concatenate(flat, axis=-1)


def _pixels(picture: Any) -> np.ndarray:
    """Converts a picture to pixels: `[height, width, 3]` uint8."""
    from matplotlib.image import imread

    pixels = imread(io.BytesIO(picture._repr_png_()), format="png")
    return np.asarray(pixels[..., :3] * 255, np.uint8)


def _env_spaces(spaces: Any, env: Any, instance: Any) -> tuple[Any, Any]:
    """Returns the spaces of observations and of actions."""
    if isinstance(env, Flattened):
        options = env.options(instance)
        actions = spaces.MultiDiscrete(options, dtype=np.int32) if options.shape else spaces.Discrete(int(options))
        return spaces.Box(*env.bounds(instance), dtype=np.float32), actions
    observation, action = (
        map_spec(spec, lambda name, one: _space(spaces, one), spaces.Dict)
        for spec in (env.observation_spec(instance), env.action_spec(instance))
    )
    return observation, action


def _action(spec: Any, action: Any) -> Any:
    """Converts an action to arrays of the specification's dtypes; rejects fractions as indices.

    Raises:
      SpecError: the action does not fit the specification.
    """

    def cast(one: ArraySpec, x: Any) -> np.ndarray:  # gymnasium's flags are int8
        array = np.asarray(x)
        chosen = array.astype(one.dtype, casting="unsafe" if one.dtype == np.bool_ else "same_kind")
        if array.dtype.kind in "biu" and (chosen != array).any():  # rejects overflow: as int32, 2^32 would become 0
            raise OverflowError
        return chosen

    try:
        chosen = jax.tree.map(cast, spec, action)
    except (TypeError, ValueError, OverflowError):
        raise SpecError(f"the action is {str(action)[:60]!r}: must be one of action_space") from None
    validate(spec, chosen, "the action")
    return chosen


def _host(value: Any) -> Any:
    """Converts values to gymnasium's form: dictionaries of NumPy arrays; flags as int8."""
    return jax.tree.map(
        lambda x: np.asarray(x, np.int8) if x.dtype == np.bool_ else np.asarray(x), as_dictionaries(value)
    )


def _space(spaces: Any, spec: ArraySpec) -> Any:
    if spec.dtype == np.bool_:
        return spaces.MultiBinary(spec.shape) if spec.shape else spaces.Box(0, 1, (), np.int8)
    values = choices(spec)
    if values is None:
        low, high = bounds(spec)
        return spaces.Box(low, high, spec.shape, spec.dtype.type)
    return (
        spaces.MultiDiscrete(values, dtype=spec.dtype.type)
        if spec.shape
        else spaces.Discrete(spec.num_values, dtype=spec.dtype.type)
    )
