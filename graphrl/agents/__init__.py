"""Agents: one folder a published system (regal, topoformer, go, egrl), and the algorithms that they share.

Each folder has the same files: config, network, learner, solver, and an `AGENT` that says what the training loop
and the commands need of it. A trained agent is a solver too, so that tables compare it with the classical ones: its
methods are named in `solvers.TRAINED`. The code stands here; `agents` at the top of the repository is a link to this
folder.
"""

import contextlib
import importlib
from typing import TYPE_CHECKING

from graphrl.errors import GraphrlError, ProblemError
from graphrl.solvers import TRAINED, find_solver

if TYPE_CHECKING:
    from graphrl.costs.problem import Problem
    from graphrl.training.agent import Agent

if __name__ != "graphrl.agents":  # through the link: a second copy of every class, and nothing would be equal to itself
    raise ImportError(f"this is graphrl.agents, imported as {__name__!r}: write `import graphrl.agents`")

# name -> module with an `AGENT` (training/agent.py), imported when it is asked for
AGENTS = {"regal": "graphrl.agents.regal.agent", "topoformer": "graphrl.agents.topoformer.agent"}


def find_agent(name: str) -> "Agent":
    """The agent of that name.

    Raises:
      ProblemError: there is none; the message lists the known ones.
    """
    if name not in AGENTS:
        raise ProblemError(f"unknown agent {name!r}: known are {', '.join(AGENTS)}")
    agent: Agent = importlib.import_module(AGENTS[name]).AGENT
    return agent


def digest(method: str, problem: "Problem") -> str:
    """16 hexadecimal digits of the policy that a method plays for a problem: of its content, not of its path.

    Empty for a method that is no trained agent's, and where the policy cannot be read: the method itself will tell.

    Raises:
      ProblemError: the method is unknown, or has no such option.
    """
    name = method.partition(":")[0]
    if name not in TRAINED:
        return ""
    solver = find_solver(method)
    options = getattr(solver, "keywords", {})
    with contextlib.suppress(GraphrlError):
        found: str = importlib.import_module(TRAINED[name].split(":")[0]).digest(problem, **options)
        return found
    return ""
