"""Interface between an agent and the training loop (`Agent`), and a trained policy as a file (`Policy`).

A new agent has to provide nothing else. The package ships policies; methods accept them as well as training
checkpoints.
"""

import dataclasses
import functools
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import jax
import numpy as np
from flax import serialization
from jax.sharding import Mesh

from graphrl.compiled.custom_call import CustomCall
from graphrl.costs.maps.chip import MemoryChip
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import content, quote_path, write_atomically
from graphrl.graphs.datasets.sets import GeneratedSet, generated_set, load_graphs
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import common_sizes
from graphrl.learning.learner import Batch, Learner
from graphrl.training import checkpoints
from graphrl.training.config import RENAMED, RunConfig, Schedule, as_dict, renamed, updated
from graphrl.training.data import Data, DataConfig, Padded, Shared

VERSION = 1

C = TypeVar("C")


class AgentConfig(Protocol):
    """The settings of an agent: a frozen dataclass whose defaults work (see `config.updated` for its fields)."""

    @property
    def problem(self) -> Problem | MemoryChip:
        """The problem for which plans are optimised, or the chip for which memory maps are optimised."""

    @property
    def evaluations(self) -> int:
        """Number of evaluations of each search during training, and of every method in `graphrl evaluate`."""

    @property
    def init_checkpoint(self) -> str:
        """Path of the policy from which training starts, see `Policy.load`; "" starts from new parameters."""


@dataclasses.dataclass(frozen=True)
class Agent:
    """Everything that `graphrl train NAME` needs from an agent.

    Attributes:
      policy: the class of the trained policy; its `settings` are the agent's settings (`AgentConfig`).
      learner: (settings, mesh, data) -> a learner with these settings, which the loop compiles for the mesh
        (`on_mesh`); the data are the run's, for learners whose state depends on the shapes of its graphs.
      batch: (settings, graphs, sizes) -> the learner's batch of graphs padded to the sizes, as NumPy arrays.
      methods: settings -> the methods that `graphrl evaluate` plays a checkpoint with these settings by, as in
        "regal:checkpoint=PATH".
      opponents: the methods that it compares them with, if they support the problem's objective; the first is the
        baseline.
      data, schedule: default settings of the data and of the loop.
      load: (settings, names of graph sets) -> their graphs, as the agent sees them.
      sizes: (settings, graphs) -> padded sizes that cover all of them.
      generated: name -> a set of generated graphs, or ProblemError.
      problem: settings -> the problem, or the chip, for which `graphrl evaluate` compares plans.
      calls: compiled functions that its programs call on CPUs: they compile while JAX traces.
      shares: settings -> the work that devices share: the "graphs" of each step's batch; or "individuals", which all
        play the same graphs, so that a batch is the whole training set.
    """

    policy: "type[Policy[Any]]"
    learner: Callable[[Any, Mesh, Data], Learner]
    batch: Callable[[Any, Sequence[ComputationGraph], Any], Batch]
    methods: Callable[[Any], tuple[str, ...]]
    opponents: tuple[str, ...] = ("brkga", "list")
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    load: Callable[[Any, Sequence[str]], list[ComputationGraph]] = lambda config, names: load_graphs(names)
    sizes: Callable[[Any, Sequence[ComputationGraph]], Padded] = lambda config, graphs: common_sizes(graphs)
    generated: Callable[[str], GeneratedSet] = generated_set
    problem: Callable[[Any], Problem | MemoryChip] = lambda config: config.problem
    calls: tuple[CustomCall, ...] = ()
    shares: Callable[[Any], Shared] = lambda config: "graphs"

    def current_settings(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the stored settings of a run, perhaps of an earlier version: see `Policy.current_settings`."""
        values = stored.get("agent")
        return {**stored, "agent": self.policy.current_settings(values)} if isinstance(values, Mapping) else {**stored}

    def work_items(self, config: RunConfig[Any]) -> tuple[int, str]:
        """Returns the number of items (graphs or individuals) that the devices share, and their name in messages."""
        if self.shares(config.agent) == "graphs":
            return config.data.graphs, "graphs a batch"
        return config.agent.individuals, "individuals"


@dataclasses.dataclass(frozen=True)
class Policy(ABC, Generic[C]):
    """A policy network with its parameters. Each agent's subclass defines its network through the abstract members.

    Attributes:
      config: configuration of the learner that trained it.
      params: parameters of the policy network, NumPy arrays.
      note: origin of the policy: the command and the date.
    """

    config: C
    params: Any
    note: str = ""

    agents: ClassVar[tuple[str, ...]]  # agents whose checkpoints contain this policy; files name the first
    defaults: ClassVar[Path]  # the folder of the policies that the package ships, see `default`
    network: ClassVar[str]  # the settings that the shapes of `params` depend on, in words

    @staticmethod
    @abstractmethod
    def settings() -> Any:
        """Returns the default settings of the agent's learner."""

    @staticmethod
    @abstractmethod
    def initial(config: Any, key: jax.Array) -> Any:
        """Initialises the parameters of the policy network."""

    @classmethod
    def current_settings(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Converts stored settings of the agent, perhaps of an earlier version, to those of this version."""
        return renamed(values, "agent.")

    @functools.cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that identify the settings and parameters."""
        old_names = {new: old for old, new in RENAMED.items()}  # so that digests in earlier results stay valid
        config = renamed(as_dict(self.config), "agent.", old_names)
        parts = [json.dumps(config, sort_keys=True).encode()]
        parts += [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(self.params)]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy atomically: the file is complete or unchanged.

        Raises:
          GraphrlError: the file cannot be written.
        """
        value = {
            "format": self._format(),
            "version": VERSION,
            "config": json.dumps(as_dict(self.config)),
            "note": self.note,
            "params": jax.tree.map(np.asarray, self.params),
        }
        data = serialization.msgpack_serialize(value)
        write_atomically(path, lambda file: file.write(data), binary=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Loads a policy from a file that `save` wrote, or from a checkpoint of `graphrl train` (a folder).

        A loaded policy is cached until the file, or the folder's checkpoint, changes.

        Raises:
          GraphrlError: the path cannot be read, or is not a policy of this agent; one line gives the reason.
        """
        is_folder = os.path.isdir(path)
        source = checkpoints.find(path) if is_folder else Path(path)
        try:
            state = os.stat(source / checkpoints.INFO if is_folder else source)
        except (OSError, ValueError):
            return cls._read_file(path)  # raises the error that names the fault
        stamp = state.st_mtime_ns, state.st_ino, state.st_size
        policy: Self = _load_cached(cls, source.absolute(), is_folder, stamp)
        return policy

    @classmethod
    def load_or_default(cls, problem: Any, checkpoint: str) -> Self:
        """Loads the policy for a method: from a checkpoint (see `load`), or the shipped one (see `default`) if
        `checkpoint` is "" or "shipped".

        Raises:
          GraphrlError: the policy cannot be read or does not exist.
        """
        return cls.default(problem) if checkpoint in ("", "shipped") else cls.load(checkpoint)

    @classmethod
    def digest_of(cls, problem: Any, *, checkpoint: str = "", **_: object) -> str:
        """Returns the digest of `load_or_default`'s policy, for `@solver(digest=...)`; accepts a method's options."""
        return cls.load_or_default(problem, checkpoint).digest

    @classmethod
    def default(cls, problem: Any) -> Self:
        """Loads the policy that the package ships for a problem's objective and transfer model, or else for its
        objective alone.

        Raises:
          GraphrlError: the package ships neither.
        """
        return cls.load_shipped([f"{problem.objective}-{problem.transfer}", problem.objective], problem.objective)

    @classmethod
    def load_shipped(cls, names: Sequence[str], what: str) -> Self:
        """Loads the first of the named policies that exists in `defaults`.

        Raises:
          GraphrlError: the package ships none of them; the message includes `what`.
        """
        for name in names:
            path = cls.defaults / f"{name}.msgpack"
            if path.exists():
                return cls.load(path)
        raise GraphrlError(f"graphrl ships no policy for {what}: name one, as in {cls.agents[0]}:checkpoint=PATH")

    @classmethod
    def load_params(cls, path: str, config: C) -> Any:
        """Loads the parameters of a policy (see `load`), from which training starts.

        Raises:
          GraphrlError: the policy cannot be read.
          ProblemError: the policy's network differs from the configuration's.
        """
        params = cls.load(path).params
        if not cls.fits(params, config):
            raise ProblemError(
                f"agent.init_checkpoint={quote_path(path)} has another network: {cls.network} must be equal"
            )
        return params

    @classmethod
    def fits(cls, params: Any, config: C) -> bool:
        """True if the parameters have the shapes and dtypes of the configuration's policy network."""
        network = jax.eval_shape(functools.partial(cls.initial, config), jax.random.key(0))
        shapes = [
            jax.tree.map(lambda leaf: (np.shape(leaf), getattr(leaf, "dtype", None)), tree)
            for tree in (network, params)
        ]
        return bool(shapes[0] == shapes[1])

    @classmethod
    def _format(cls) -> str:
        return f"graphrl-{cls.agents[0]}-policy"

    @classmethod
    def _read_file(cls, path: str | os.PathLike[str]) -> Self:
        with content(path) as data:
            text = bytes(data)
        try:
            value = serialization.msgpack_restore(text)
            form, version = value["format"], value["version"]
        except Exception:  # msgpack raises errors of its own types, and a file can contain anything
            raise GraphrlError(
                f"{quote_path(path)}: is not a policy: must be a file of `Policy.save` or a checkpoint"
            ) from None
        if (form, version) != (cls._format(), VERSION):
            raise GraphrlError(
                f"{quote_path(path)} is {str(form)[:60]!r} version {str(version)[:60]}: "
                f"must be {cls._format()} version {VERSION}"
            )
        try:
            config, note = json.loads(value.get("config")), str(value.get("note", ""))
        except (TypeError, ValueError, RecursionError):
            raise GraphrlError(f"{quote_path(path)}: the policy is broken: it has no settings") from None
        return cls._checked(path, config, value.get("params"), note)

    @classmethod
    def _read_checkpoint(cls, path: Path) -> Self:
        checkpoint = checkpoints.read(path)
        info, state = checkpoint.info, checkpoint.state
        if info.agent not in cls.agents:
            agents = " or ".join(map(repr, cls.agents))
            raise GraphrlError(f"{quote_path(path)} is a checkpoint of {info.agent!r}: must be one of {agents}")
        try:
            params = state["params"]["policy"]
        except (TypeError, KeyError, IndexError):
            params = None  # fits no settings: `_checked` raises
        return cls._checked(path, info.config.get("agent"), params, f"step {info.step} of {quote_path(path)}")

    @classmethod
    def _checked(cls, path: str | os.PathLike[str], values: Any, params: Any, note: str) -> Self:
        if not isinstance(values, dict):
            raise GraphrlError(f"{quote_path(path)}: the policy is broken: it has no settings")
        try:
            config = updated(cls.settings(), cls.current_settings(values), "agent.")
        except GraphrlError as error:
            raise GraphrlError(f"{quote_path(path)}: {error}") from None
        # shipped policies fit; the check traces the network, which takes most of a second
        if not Path(path).is_relative_to(cls.defaults) and not cls.fits(params, config):
            raise GraphrlError(f"{quote_path(path)}: its parameters do not fit its settings: another graphrl version")
        return cls(config, jax.tree.map(lambda x: np.asarray(x, np.float32), params), note)


def tiny_graph() -> ComputationGraph:
    """Creates a tiny graph for initialising parameters, whose shapes depend only on the numbers of features."""
    first = Op("a", "op", 1.0, outputs=(Tensor("a.0", 1),), flops=1)
    return ComputationGraph("smallest", (first, Op("b", "op", 1.0, inputs=("a.0",), flops=1)))


@functools.lru_cache(maxsize=16)
def _load_cached(kind: type[Policy[Any]], path: Path, is_folder: bool, stamp: tuple[int, ...]) -> Any:
    return kind._read_checkpoint(path) if is_folder else kind._read_file(path)
