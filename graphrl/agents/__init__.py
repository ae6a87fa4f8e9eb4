"""Agents: one folder per published system (regal, topoformer, go, egrl). Shared parts are in graphrl/learning.

Each folder has the same files: config, network (with the trained policy), learner, and agent. The latter has an `AGENT`
for the training loop and the commands, and the solvers. A trained agent is also a solver, so that tables compare it
with classical ones: graphrl/methods.py lists its methods. `agents` at the top of the repository is a link to this
folder.
"""

import importlib
from typing import TYPE_CHECKING

from graphrl.errors import ProblemError, suggest

if TYPE_CHECKING:
    from graphrl.training.agent import Agent

if __name__ != "graphrl.agents":  # through the link: would create a second copy of every class, unequal to the first
    raise ImportError(f"this is graphrl.agents, imported as {__name__!r}: write `import graphrl.agents`")

# name -> module, imported on first use, and optionally the name of its `Agent` (training/agent.py), default "AGENT"
AGENTS = {
    "egrl": "graphrl.agents.egrl.agent",
    "gdp": "graphrl.agents.go.agent:GDP",
    "go": "graphrl.agents.go.agent",
    "regal": "graphrl.agents.regal.agent",
    "regal-hint": "graphrl.agents.regal.agent:HINT",
    "topoformer": "graphrl.agents.topoformer.agent",
}


def find_agent(name: str) -> "Agent":
    """Returns the agent with that name.

    Raises:
      ProblemError: the name is unknown; the message lists the nearest known ones.
    """
    if name not in AGENTS:
        raise ProblemError(f"unknown agent {name!r}: {suggest(name, AGENTS)}")
    module, _, attribute = AGENTS[name].partition(":")
    agent: Agent = getattr(importlib.import_module(module), attribute or "AGENT")
    return agent
