"""A real but tiny agent for tests of the training loop: it learns the mean of a graph's run times from the times."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.learning.learner import Learner, LearnerState, count, device_count, keys, mean, sum_devices
from graphrl.training.agent import Agent, Policy
from graphrl.training.config import RunConfig, Schedule, parsed
from graphrl.training.data import DataConfig
from graphrl.training.folder import has_run
from graphrl.training.run import Result, run_config, train


@dataclasses.dataclass(frozen=True)
class TinyConfig:
    """Settings of every supported type."""

    rate: float = 0.05
    width: int = 4
    kind: Literal["plain", "noisy"] = "noisy"
    poisoned: int | None = None
    layers: tuple[int, ...] = (4, 4)
    verbose: bool = False
    problem: Problem = Problem("makespan", 2)
    evaluations: int = 100
    init_checkpoint: str = ""


class TinyPolicy(Policy[TinyConfig]):
    """A linear model on `[g, width]` features."""

    agents: ClassVar[tuple[str, ...]] = ("tiny",)
    defaults: ClassVar[Path] = Path(__file__).parent / "no_defaults"
    network: ClassVar[str] = "width"
    settings = staticmethod(TinyConfig)

    @staticmethod
    def initial(config: TinyConfig, key: jax.Array) -> Any:
        return {"w": jax.random.normal(key, (config.width,)), "b": jnp.zeros(())}


def tiny_learner(config: TinyConfig) -> Learner:
    """Squared error, with noise from the key."""
    optimiser = optax.sgd(config.rate, momentum=0.5)

    def init(key: jax.Array, policy: Any = None) -> LearnerState:
        params = {"policy": TinyPolicy.initial(config, key) if policy is None else policy}
        return LearnerState(params, optimiser.init(params), jnp.int32(0))

    def update(state: LearnerState, key: jax.Array, batch: Any) -> tuple[LearnerState, Any]:
        drawn = jax.vmap(jax.random.normal)(keys(key, batch["target"].shape[0]))
        noise = 0.1 * drawn if config.kind == "noisy" else 0.0

        def loss(params: Any) -> jax.Array:
            return jnp.mean((guess(params, batch) - batch["target"] - noise) ** 2) / device_count()

        value, gradient = sum_devices(jax.value_and_grad(loss)(state.params))
        if config.poisoned is not None:
            value = jnp.where(state.step + 1 == config.poisoned, jnp.nan, value)
        changes, moments = optimiser.update(gradient, state.optimiser)
        state = LearnerState(optax.apply_updates(state.params, changes), moments, state.step + 1)
        return state, {"loss": value, "env_steps": count(batch["target"])}

    def evaluate(params: Any, key: jax.Array, batch: Any) -> dict[str, jax.Array]:
        return {"negative_error": -mean((guess(params, batch) - batch["target"]) ** 2)}

    def guess(params: Any, batch: Any) -> jax.Array:
        guessed: jax.Array = batch["features"] @ params["policy"]["w"] + params["policy"]["b"]
        return guessed

    return Learner(init, update, evaluate, "negative_error")


def tiny_batch(graphs: Sequence[ComputationGraph], to: Sizes) -> dict[str, np.ndarray]:
    """Mean run times of each quarter of the ops as features, and of all ops as the target."""
    runtime = [graph.arrays.runtime / 50 for graph in graphs]
    features = [[part.mean() for part in np.array_split(one, 4)] for one in runtime]
    target = [one.mean() for one in runtime]
    return {"features": np.array(features, np.float32), "target": np.array(target, np.float32)}


TINY = AGENT = Agent(
    TinyPolicy,
    lambda config, mesh, data: tiny_learner(config),
    lambda config, graphs, to: tiny_batch(graphs, to),
    methods=lambda _: (),
    data=DataConfig(("layered:20x6@100", "layered:40x6@100"), ("layered:20x4", "layered:30x5"), graphs=4, buckets=2),
    schedule=Schedule(steps=12, validate_every=5, checkpoint_every=2, keep=2),
)


def train_tiny(folder: Path, *settings: str, resume: bool = False) -> Result:
    """Trains it in a folder with settings such as "training.steps=5"."""
    run = folder if resume and has_run(folder) else None
    config: RunConfig[Any] = run_config(TINY, parsed(settings), run, name="tiny")
    return train("tiny", TINY, config, folder, resume=resume)


if __name__ == "__main__":  # for tests that kill it: FOLDER SETTING...; with --distributed it joins other processes
    from graphrl.training import devices

    arguments = [argument for argument in sys.argv[2:] if argument != "--distributed"]
    devices.configure(TINY.data.graphs, distributed="--distributed" in sys.argv)
    print(train_tiny(Path(sys.argv[1]), *arguments, resume=True).outcome.step, flush=True)
