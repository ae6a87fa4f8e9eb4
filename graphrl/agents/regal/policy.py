"""A trained policy as a file of its own: what the package ships, and what `regal` plays beside training checkpoints."""

import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import serialization

from graphrl.agents import reinforce
from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import networks
from graphrl.costs.problem import Objective
from graphrl.envs.proposal.coding import chosen, coding, gene_choices
from graphrl.envs.proposal.env import observe
from graphrl.envs.proposal.instance import ProposalParams, instance
from graphrl.errors import GraphrlError
from graphrl.files import content, shown, write_atomically
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.beta import BetaTable
from graphrl.training import checkpoints
from graphrl.training.config import as_dict, updated

FORMAT, VERSION = "graphrl-regal-policy", 1
DEFAULTS = Path(__file__).parent / "defaults"


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy network with its parameters.

    Attributes:
      config: of the learner that made it.
      params: of `networks(config).policy`, NumPy arrays.
      note: how it was made: the command, the date.
    """

    config: RegalConfig
    params: Any
    note: str = ""

    @functools.cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of what it is: settings and parameters."""
        parts = [json.dumps(as_dict(self.config), sort_keys=True).encode()]
        parts += [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(self.params)]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def propose(self, params: ProposalParams, seed: int = 0) -> BetaTable:
        """Proposals for one instance, as `brkga.init` takes them: choices `[k, 1]`.

        They are sampled, as in training and in the papers, so that ops which look alike get different proposals. The
        likeliest ones were 1 to 3% worse than that on two of three policies that we compared.
        """
        choice = _sampled(self.params, params, jax.random.key(seed), self.config)
        return chosen(choice[:, None], coding(self.config.coding))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it, whole or not at all.

        Raises:
          GraphrlError: the file cannot be written.
        """
        value = {
            "format": FORMAT,
            "version": VERSION,
            "config": json.dumps(as_dict(self.config)),
            "note": self.note,
            "params": jax.tree.map(np.asarray, self.params),
        }
        data = serialization.msgpack_serialize(value)
        write_atomically(path, lambda file: file.write(data), binary=True)


def load(path: str | os.PathLike[str]) -> Policy:
    """The policy of a file that `Policy.save` wrote, or of a checkpoint of `graphrl train` (a folder).

    What was read once is remembered until the file, or the folder's checkpoint, is another.

    Raises:
      GraphrlError: it cannot be read, or is no policy of REGAL; one line says why.
    """
    is_folder = os.path.isdir(path)
    found = checkpoints.find(path) if is_folder else Path(path)
    try:
        state = os.stat(found / checkpoints.INFO if is_folder else found)
    except (OSError, ValueError):
        return _of_file(path)  # which says what is wrong
    return _remembered(found.absolute(), is_folder, state.st_mtime_ns, state.st_ino, state.st_size)


@functools.lru_cache(maxsize=16)
def _remembered(path: Path, is_folder: bool, *_: int) -> Policy:
    return _of_checkpoint(path) if is_folder else _of_file(path)


def _of_file(path: str | os.PathLike[str]) -> Policy:
    with content(path) as data:
        text = bytes(data)
    try:
        value = serialization.msgpack_restore(text)
        form, version = value["format"], value["version"]
    except Exception:  # msgpack has errors of its own, and anything can be in a file
        raise GraphrlError(f"{shown(path)}: is no policy: must be a file of `Policy.save` or a checkpoint") from None
    if (form, version) != (FORMAT, VERSION):
        raise GraphrlError(f"{shown(path)} is {form!r} version {version}: must be {FORMAT} version {VERSION}")
    return _checked(path, json.loads(value["config"]), value["params"], value["note"])


def fits(params: Any, config: RegalConfig) -> bool:
    """Whether they are parameters of the configuration's policy network."""
    wanted = jax.eval_shape(networks(config).policy.init, jax.random.key(0), observe(smallest()))
    shapes = [jax.tree.map(np.shape, tree) for tree in (wanted, params)]
    return bool(shapes[0] == shapes[1])


def default(objective: Objective) -> Policy:
    """The policy for an objective that the package ships.

    Raises:
      GraphrlError: there is none.
    """
    path = DEFAULTS / f"{objective}.msgpack"
    if not path.exists():
        raise GraphrlError(f"no policy for {objective} comes with graphrl: name one, as in regal:checkpoint=PATH")
    return load(path)


def smallest() -> ProposalParams:
    """An instance to make parameters with: they depend on the numbers of features alone."""
    first, second = Op("a", "op", 1.0, outputs=(Tensor("a.0", 1),)), Op("b", "op", 1.0, inputs=("a.0",))
    return instance(ComputationGraph("smallest", (first, second)))


def _of_checkpoint(path: Path) -> Policy:
    found = checkpoints.read(path)
    if found.info.agent != "regal":
        raise GraphrlError(f"{shown(path)} is a checkpoint of {found.info.agent!r}: must be one of 'regal'")
    note = f"step {found.info.step} of {shown(path)}"
    return _checked(path, found.info.config["agent"], found.state["params"]["policy"], note)


def _checked(path: str | os.PathLike[str], config: dict[str, Any], params: Any, note: str) -> Policy:
    try:
        known = updated(RegalConfig(), config)
    except GraphrlError as error:
        raise GraphrlError(f"{shown(path)}: {error}") from None
    if not fits(params, known):
        raise GraphrlError(f"{shown(path)}: its parameters do not fit its settings: it is of another graphrl")
    return Policy(known, jax.tree.map(lambda x: np.asarray(x, np.float32), params), note)


@functools.partial(jax.jit, static_argnames="config")
def _sampled(params: Any, seen: ProposalParams, key: jax.Array, config: RegalConfig) -> jax.Array:
    action = reinforce.sample(key, networks(config).policy.apply(params, observe(seen)))
    return gene_choices(action, coding(config.coding), seen.graph.sizes, config.problem.devices)
