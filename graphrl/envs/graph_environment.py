"""From graphs to instances, and from episodes to plans: `GraphEnvironment`, the base class of all environments.

    env = graphrl.make("Ordering-v0")
    instance = env.instance("model.onnx")  # or a graph, a name, or a JAX function and its arguments
    batch = env.instances(["layered:50x64"])  # 64 graphs, padded alike: a leading axis on every array
    generator = env.generator("layered:50x1000")  # env.reset(key, generator.sample(key)), also inside jit and vmap
    plan = env.plan("model.onnx", instance, state)  # exact costs; env.render draws it

An environment's options are the problem, the chip or the tasks: all of its instances share them. An instance is one
graph, as arrays.
"""

import abc
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs import specs
from graphrl.errors import GraphrlError, PlanError, ProblemError, one_line
from graphrl.graphs.datasets.sets import Model, load_graphs, model_graph
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, common_sizes, pad
from graphrl.plan import Plan
from graphrl.plan.memory_map import MemoryMap

if TYPE_CHECKING:
    from graphrl.plan.plot import Picture

Instance = TypeVar("Instance")
Called = tuple[Any, ...]  # a JAX function and its arguments
Models = Model | Sequence[Model | Called]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Generator(Generic[Instance]):
    """Draws instances: `env.reset(key, generator.sample(key))`.

    A pytree. Pass it to a jitted function as an argument: arrays from an enclosing scope become constants of the
    program.
    """

    instances: Instance  # leading axis g, padded alike, on the device

    @property
    def count(self) -> int:
        """Number g of different instances."""
        return int(jax.tree.leaves(self.instances)[0].shape[0])

    def sample(self, key: jax.Array) -> Instance:
        """Draws one of the instances, uniformly. For `jax.jit`, `jax.vmap` and `jax.lax.scan`."""
        return self[jax.random.randint(key, (), 0, self.count)]

    def __getitem__(self, index: int | jax.Array) -> Instance:
        """Returns the instance with that index."""
        one: Instance = jax.tree.map(lambda array: array[index], self.instances)
        return one


class GraphEnvironment(abc.ABC, Generic[Instance]):
    """Makes instances of graphs, and plans of episodes. Subclasses implement `envs.base.Environment` and
    `make_instances`, from which they have `instance`, `instances` and `generator`.

    A model is a `ComputationGraph`, a path, a name as in `graphrl.graphs.datasets.sets` (`zoo:gpt2/b1/hlo`,
    `workloads:bert`, `layered:50@7`), or a JAX function. To choose the chip of its run times, or sizes that an ONNX
    file leaves open, read the graph first: `graphrl.read_graph(path, chip=..., dims=...)`, `graphrl.from_jax`.
    """

    def instance(self, model: Model, *args: Any, to: Any = None, weights_argnums: int | Sequence[int] = ()) -> Instance:
        """Makes the instance of a model, on the device.

        Args:
          model: a graph, a path, a name or a JAX function.
          *args: the arguments of a function, arrays or `jax.ShapeDtypeStruct`s; it is traced, not run.
          to: sizes to pad to, `graph.sizes` of other instances (`problem.sizes` for memory maps); by default the bucket
            of the graph.
          weights_argnums: arguments of a function that are weights, see `graphrl.from_jax`; the others are inputs.

        Raises:
          GraphrlError: the model cannot be read, names several graphs, or is too large for `to`, or the environment
            cannot decide on it.
        """
        if weights_argnums != () and not callable(model):
            raise ProblemError("weights_argnums names arguments of a function: this model is none")
        options = {"weights_argnums": weights_argnums} if callable(model) else {}
        graph = self._graph((model, *args) if args else model, **options)
        return _on_device(_first(self.make_instances([graph], to)))

    def instances(self, models: Models, to: Any = None) -> Instance:
        """Makes the instances of several models, on the device: a batch with a leading axis g on every array.

        Args:
          models: a list of models, or one that names several graphs, such as a folder or "layered:50x64". A function
            with arguments is a tuple `(function, *arguments)`.
          to: sizes to pad to; by default the smallest bucket that covers all.

        Raises:
          GraphrlError: as `instance`; or there are no models.
        """
        is_one = callable(models) or isinstance(models, str) or not isinstance(models, Iterable)
        each: Any = [models] if is_one else models
        graphs = [graph for model in each for graph in self._graphs(model)]
        if not graphs:
            raise ProblemError("no models: a batch needs at least one")
        return _on_device(self.make_instances(graphs, to))

    def generator(self, models: Models, to: Any = None) -> Generator[Instance]:
        """Makes a generator that draws from the instances of several models; arguments and errors as in `instances`."""
        return Generator(self.instances(models, to))

    def load(self, names: Sequence[str]) -> list[ComputationGraph]:
        """Loads the graphs of paths and names, see above. Raises GraphrlError for one that cannot be read."""
        return load_graphs(names)

    def sizes(self, graphs: Sequence[ComputationGraph]) -> Any:
        """Returns the smallest bucket of sizes that covers all of the graphs, for `to`."""
        return common_sizes(graphs)

    def sample_action(self, key: jax.Array, observation: Any) -> Any:
        """Draws a random action that the observation's `action_mask` allows, uniformly for each choice."""
        return specs.sample_masked(observation.action_mask, key)

    def plan(self, model: Model | Called, instance: Instance, state: Any) -> Plan | MemoryMap:
        """Converts the decisions of an episode to a plan, with exact costs from the host.

        Args:
          model: the model of the instance; a function with its arguments is a tuple `(function, *arguments)`.
          instance: the instance, without a batch axis.
          state: state of the episode, without a batch axis.

        Raises:
          PlanError: the instance is of another graph, or the episode has not decided everything yet.
          ProblemError: the instance or the state has a batch axis.
        """
        return self._plan(*self._checked(model, instance, state))

    def render(self, model: Model | Called, instance: Instance, state: Any) -> "Picture":
        """Draws the plan of an episode so far: a picture that notebooks display, with `save(path)`.

        Args and errors: as for `plan`; but `Ordering-v0` draws the ops so far.
        """
        return self._picture(*self._checked(model, instance, state))

    @abc.abstractmethod
    def make_instances(self, graphs: Sequence[ComputationGraph], to: Any = None) -> Instance:
        """Converts graphs to a batch of instances: NumPy arrays with a leading axis g. `instances` takes any models.

        Args:
          graphs: the graphs.
          to: sizes to pad to, as for `instances`; None pads all alike.

        Raises:
          GraphrlError: a graph is too large for `to`, or the environment cannot decide on it.
        """

    def _plan(self, graph: ComputationGraph, instance: Instance, state: Any) -> Plan | MemoryMap:
        """Makes the plan; instance and state are NumPy arrays."""
        raise PlanError(f"{type(self).__name__} makes no plans: implement plan(graph, instance, state)")

    def _picture(self, graph: ComputationGraph, instance: Instance, state: Any) -> "Picture":
        plan = self._plan(graph, instance, state)
        return plan.plot() if isinstance(plan, Plan) else plan.plot(graph)

    def _graphs(self, model: Model | Called, **options: Any) -> list[ComputationGraph]:
        """Loads the graphs that a model names; with options of `model_graph` for a function."""
        if isinstance(model, str | os.PathLike):
            return self.load([os.fspath(model)])
        if isinstance(model, tuple):
            return [model_graph(*model, **options)]
        try:
            return [model_graph(model, **options)]
        except TypeError as error:
            if not callable(model) or isinstance(error, GraphrlError):
                raise
            raise ProblemError(
                f"a function needs its arguments: pass (function, *arguments). Without them: {one_line(error)}"
            ) from error

    def _graph(self, model: Model | Called, **options: Any) -> ComputationGraph:
        graphs = self._graphs(model, **options)
        if len(graphs) > 1:
            raise ProblemError(
                f"{model!r} names {len(graphs):,} graphs, where one is needed: env.instances takes several"
            )
        return graphs[0]

    def _checked(self, model: Model | Called, instance: Any, state: Any) -> tuple[ComputationGraph, Any, Any]:
        """Loads the graph; checks that instance and state have no batch axis, and that the instance is of the graph."""
        if np.ndim(instance.num_ops):
            raise ProblemError(f"the instance has a batch axis, of {len(instance.num_ops)}: pass one, {_EXAMPLE}")
        reset: Any = self
        expected = jax.eval_shape(lambda key, one: reset.reset(key, one)[0], jax.random.key(0), instance)
        shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(one)] for one in (state, expected)]
        if shapes[0] != shapes[1]:
            raise ProblemError(f"the state is not of one episode of this instance: pass one of a batch {_EXAMPLE}")
        graph = self._graph(model)
        instance = _on_host(instance)
        self._check_is_of(graph, instance)
        return graph, instance, _on_host(state)

    def _check_is_of(self, graph: ComputationGraph, instance: Any) -> None:
        """Raises PlanError if an instance, of NumPy arrays, is of another graph."""
        if len(graph.ops) != instance.num_ops:
            raise PlanError(f"the instance has {instance.num_ops} ops: graph {graph.name!r} has {len(graph.ops)}")
        padded = getattr(instance, "graph", None)  # instances of memory maps have none
        if padded is not None and not _has_edges_of(padded, graph):
            raise PlanError(f"the instance is of another graph than {graph.name!r}, with as many ops")


_EXAMPLE = "as in jax.tree.map(lambda array: array[0], state)"


def stacked(instances: Sequence[Instance], *, rounded: bool = False) -> Instance:
    """Stacks instances that are padded alike: a leading axis on every array, on the host. If `rounded`, the last one is
    repeated up to a power of two, so that batches of many lengths share few compiled programs.
    """
    if rounded:
        instances = [*instances, *[instances[-1]] * ((1 << (len(instances) - 1).bit_length()) - len(instances))]
    batch: Instance = jax.tree.map(lambda *leaves: np.stack(leaves), *instances)
    return batch


def _first(batch: Instance) -> Instance:
    one: Instance = jax.tree.map(lambda array: array[0, ...], batch)
    return one


def _on_device(instances: Instance) -> Instance:
    on_device: Instance = jax.tree.map(jnp.asarray, instances)
    return on_device


def _has_edges_of(padded: PaddedGraph, graph: ComputationGraph) -> bool:
    """True if a padded graph has the ops, tensors and edges of a graph."""
    expected = pad(graph, padded.sizes)
    names = "producer", "use_tensor", "use_op"
    return all(np.array_equal(getattr(padded, name), getattr(expected, name)) for name in names)


def _on_host(value: Any) -> Any:
    """Copies arrays to the host; typed keys stay as they are."""
    return jax.tree.map(
        lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf), value
    )
