"""A real but tiny agent for tests of the training loop: from a graph's run times it learns their mean."""

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.training.checkpoints import read
from graphrl.training.config import RunConfig, parsed
from graphrl.training.data import DataConfig
from graphrl.training.folder import has_run
from graphrl.training.learner import Agent
from graphrl.training.run import Result, run_config, train
from graphrl.training.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class TinyConfig:
    """Settings of every type that there is."""

    rate: float = 0.05
    width: int = 4
    kind: Literal["plain", "noisy"] = "noisy"
    poisoned: int | None = None
    layers: tuple[int, ...] = (4, 4)
    verbose: bool = False
    problem: Problem = Problem("makespan", 2)
    evaluations: int = 100
    start: str = ""


class TinyState(NamedTuple):
    """The parameters, the optimiser's state and the number of updates."""

    params: dict[str, jax.Array]
    opt_state: Any
    updates: jax.Array


class TinyLearner:
    """Squared error of a linear model on `[g, width]` features, with noise from the key."""

    score = "negative_error"

    def __init__(self, config: TinyConfig, mesh: Mesh) -> None:
        self._config, self._mesh, self._optimizer = config, mesh, optax.sgd(config.rate, momentum=0.5)

    def init(self, key: jax.Array) -> TinyState:
        state = self._first(key)
        if self._config.start:
            state = state._replace(params=read(self._config.start, self.template()).state.params)
        return state

    def template(self) -> TinyState:
        return jax.eval_shape(self._first, jax.random.key(0))

    def _first(self, key: jax.Array) -> TinyState:
        params = {"w": jax.random.normal(key, (self._config.width,)), "b": jnp.zeros(())}
        return TinyState(params, self._optimizer.init(params), jnp.zeros((), jnp.int32))

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def update(self, state: TinyState, key: jax.Array, batch: dict[str, jax.Array]) -> tuple[TinyState, Any]:
        noise = 0.1 * jax.random.normal(key, batch["target"].shape) if self._config.kind == "noisy" else 0.0

        def loss(params: dict[str, jax.Array]) -> jax.Array:
            return jnp.mean((batch["features"] @ params["w"] + params["b"] - batch["target"] - noise) ** 2)

        value, gradient = jax.value_and_grad(loss)(state.params)
        if self._config.poisoned is not None:
            value = jnp.where(state.updates + 1 == self._config.poisoned, jnp.nan, value)
        changes, opt_state = self._optimizer.update(gradient, state.opt_state)
        return TinyState(optax.apply_updates(state.params, changes), opt_state, state.updates + 1), {"loss": value}

    @functools.partial(jax.jit, static_argnums=0)
    def evaluate(self, params: dict[str, jax.Array], key: jax.Array, batch: dict[str, jax.Array]) -> Any:
        return {"negative_error": -jnp.mean((batch["features"] @ params["w"] + params["b"] - batch["target"]) ** 2)}

    def validated(self, state: TinyState, values: Mapping[str, float]) -> TinyState:
        return state


def tiny_batch(graphs: Sequence[ComputationGraph], to: Sizes) -> dict[str, np.ndarray]:
    """Means of the run times of a quarter of the ops each, and of all."""
    runtime = [graph.arrays.runtime / 50 for graph in graphs]
    features = [[part.mean() for part in np.array_split(one, 4)] for one in runtime]
    target = [one.mean() for one in runtime]
    return {"features": np.array(features, np.float32), "target": np.array(target, np.float32)}


TINY = AGENT = Agent(
    TinyConfig,
    TinyLearner,
    lambda config, graphs, to: tiny_batch(graphs, to),
    methods=(),
    data=DataConfig(("layered:20x6@100", "layered:40x6@100"), ("layered:20x4", "layered:30x5"), graphs=4, buckets=2),
    schedule=Schedule(steps=12, validate_every=5, checkpoint_every=2, keep=2),
)


def train_tiny(folder: Path, *settings: str, resume: bool = False) -> Result:
    """Trains it in a folder with settings such as "training.steps=5"."""
    known = folder if resume and has_run(folder) else None
    config: RunConfig[Any] = run_config(TINY, parsed(settings), known, name="tiny")
    return train("tiny", TINY, config, folder, resume=resume)


if __name__ == "__main__":  # for tests that kill it: FOLDER SETTING...; --distributed joins others
    from graphrl.training import devices

    arguments = [argument for argument in sys.argv[2:] if argument != "--distributed"]
    devices.start(distributed="--distributed" in sys.argv)
    print(train_tiny(Path(sys.argv[1]), *arguments, resume=True).outcome.step, flush=True)
