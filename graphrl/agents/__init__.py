"""Agents: one folder per published system (regal, topoformer, go, egrl). Shared parts are in graphrl/learning.

Each folder has the same files: config, network (with the trained policy), learner, and agent. The latter has an `AGENT`
for the training loop and the commands, and the solvers. A trained agent is also a solver, so that tables compare it
with classical ones: graphrl/methods.py lists its methods. `sharding`, which guides `graphrl shard`, has its settings in
network and its learner in agent. `ppo` is PPO in any environment with any network. `agents` at the top of the
repository is a link to this folder.

Agents of other packages: `register("mine", "my_package.agent:AGENT")`, or an entry point of the group "graphrl.agents",
which every process and command sees:

    [project.entry-points."graphrl.agents"]
    mine = "my_package.agent:AGENT"
"""

import functools
import importlib.metadata
import re
from typing import TYPE_CHECKING

from graphrl.errors import GraphrlError, ProblemError, import_entry_point, suggest

if TYPE_CHECKING:
    from graphrl.training.agent import Agent

if __name__ != "graphrl.agents":  # through the link: would create a second copy of every class, unequal to the first
    raise ImportError(f"this is graphrl.agents, imported as {__name__!r}: write `import graphrl.agents`")

# name -> module, imported on first use, and optionally the name of its `Agent` (training/agent.py), default "AGENT"
AGENTS = {
    "egrl": "graphrl.agents.egrl.agent",
    "gdp": "graphrl.agents.go.agent:GDP",
    "go": "graphrl.agents.go.agent",
    "ppo": "graphrl.agents.ppo",
    "regal": "graphrl.agents.regal.agent",
    "sharding": "graphrl.agents.sharding.agent",
    "topoformer": "graphrl.agents.topoformer.agent",
}
SUCCESSORS = {"regal-hint": "regal"}  # of removed agents


def register(name: str, entry_point: str) -> None:
    """Registers an agent for this process, as `graphrl train NAME` and `find_agent` name it.

    Args:
      name: name of the agent; must be one of `Policy.agents` of its policy.
      entry_point: "module:ATTRIBUTE" of its `Agent`, or "module" for the attribute "AGENT"; imported on first use.

    Raises:
      GraphrlError: the name is taken or not usable in a command, or the entry point does not have this form.
    """
    if name in agents():
        raise GraphrlError(f"agent {name!r} is registered already, as {agents()[name]}")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise GraphrlError(f"agent {name!r}: its name must have only letters, digits, '.', '-' and '_'")
    if not re.fullmatch(r"\w+(\.\w+)*(:\w+)?", entry_point):
        raise GraphrlError(f"entry point {entry_point!r} of agent {name!r}: must be 'module:ATTRIBUTE'")
    AGENTS[name] = entry_point


def agents() -> dict[str, str]:
    """Returns the entry points of all agents by name: graphrl's, registered ones, and those of installed packages."""
    return {**installed(), **AGENTS}


@functools.cache
def installed() -> dict[str, str]:
    """Returns the entry points of other packages' agents by name."""
    return {point.name: point.value for point in importlib.metadata.entry_points(group="graphrl.agents")}


def find_agent(name: str) -> "Agent":
    """Returns the agent with that name.

    Raises:
      ProblemError: the name is unknown; the message lists the nearest known ones.
      GraphrlError: the entry point of another package's agent cannot be imported, or is no agent of that name.
    """
    known = agents()
    if name not in known:
        if name in SUCCESSORS:
            raise ProblemError(f"there is no agent {name!r} any more: use {SUCCESSORS[name]!r}")
        own = "register your own by an entry point or graphrl.agents.register: see graphrl train --help"
        raise ProblemError(f"unknown agent {name!r}: {suggest(name, known)}; {own}")
    module, _, attribute = known[name].partition(":")
    what = f"agent {name!r}: entry point {known[name]!r}"
    agent = import_entry_point(f"{module}:{attribute or 'AGENT'}", what)
    from graphrl.training.agent import Agent

    if not isinstance(agent, Agent):
        raise GraphrlError(f"{what} is of type {type(agent).__name__}: must be a graphrl.training.agent.Agent")
    if name not in agent.policy.agents:
        raise GraphrlError(f"{what} has a policy of {', '.join(agent.policy.agents)}: add {name!r} to its `agents`")
    return agent
