"""Registry of environments: `graphrl.make("Proposal-v0", ...)`. Versions increase when learning results can change."""

import inspect
from typing import Any

from graphrl.errors import GraphrlError, import_entry_point, suggest

_ENTRY_POINTS = {  # imported on first use
    "Compile-v0": "graphrl.envs.compile.env:CompileEnv",
    "MemoryMap-v0": "graphrl.envs.memory_map:MemoryMapEnv",
    "Ordering-v0": "graphrl.envs.ordering:OrderingEnv",
    "Proposal-v0": "graphrl.envs.proposal:ProposalEnv",
    "Sharding-v0": "graphrl.envs.sharding.env:ShardingEnv",
}


def register(id: str, entry_point: str) -> None:
    """Registers an environment.

    Args:
      id: name and version of the environment, as in "Name-v0".
      entry_point: "module:Class"; the class is called with the options of `make`.

    Raises:
      GraphrlError: the id is taken, or the entry point does not have this form.
    """
    if id in _ENTRY_POINTS:
        raise GraphrlError(f"environment {id!r} is registered already, as {_ENTRY_POINTS[id]}")
    module, _, name = entry_point.partition(":")
    if not module or not name:
        raise GraphrlError(f"entry point {entry_point!r} of environment {id!r}: must be 'module:Class'")
    _ENTRY_POINTS[id] = entry_point


def registered() -> tuple[str, ...]:
    """Returns all registered ids, sorted."""
    return tuple(sorted(_ENTRY_POINTS))


def find(id: str) -> Any:
    """Returns the class of the environment with that id.

    Raises:
      GraphrlError: the id is not known, or its class cannot be imported.
    """
    if id not in _ENTRY_POINTS:
        raise GraphrlError(f"no environment {id!r}: {suggest(id, registered())}")
    return import_entry_point(_ENTRY_POINTS[id], f"environment {id!r}")


def make(id: str, **options: Any) -> Any:
    """Creates the environment with that id.

    Args:
      id: one of `registered()`.
      options: arguments of the environment's class.

    Raises:
      GraphrlError: the id is not known, or the environment has no such option.
    """
    build = find(id)
    parameters = inspect.signature(build).parameters
    for option in options:
        if option not in parameters:
            known = suggest(option, parameters) if parameters else "it has none"
            raise GraphrlError(f"{id} has no option {option!r}: {known}")
    return build(**options)
