"""Agents: one folder a published system (regal, topoformer, go, egrl). What they share is in graphrl/learning.

Each folder has the same files: config, network (with the trained policy), learner, and agent: an `AGENT` that says what
the training loop and the commands need of it, and the solvers. A trained agent is a solver too, so that tables compare
it with the classical ones: its methods are named in graphrl/methods.py. `agents` at the top of the repository is a link
to this folder.
"""

import importlib
from typing import TYPE_CHECKING

from graphrl.errors import ProblemError, near

if TYPE_CHECKING:
    from graphrl.training.agent import Agent

if __name__ != "graphrl.agents":  # through the link: a second copy of every class, and nothing would be equal to itself
    raise ImportError(f"this is graphrl.agents, imported as {__name__!r}: write `import graphrl.agents`")

# name -> module, imported when it is asked for, and in it an `Agent` (training/agent.py): "AGENT" if it says no other
AGENTS = {
    "egrl": "graphrl.agents.egrl.agent",
    "gdp": "graphrl.agents.go.agent:GDP",
    "go": "graphrl.agents.go.agent",
    "regal": "graphrl.agents.regal.agent",
    "regal-hint": "graphrl.agents.regal.agent:HINT",
    "topoformer": "graphrl.agents.topoformer.agent",
}


def find_agent(name: str) -> "Agent":
    """The agent of that name.

    Raises:
      ProblemError: there is none; the message has the known ones.
    """
    if name not in AGENTS:
        raise ProblemError(f"unknown agent {name!r}: {near(name, AGENTS)}")
    module, _, attribute = AGENTS[name].partition(":")
    agent: Agent = getattr(importlib.import_module(module), attribute or "AGENT")
    return agent
