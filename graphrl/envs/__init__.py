"""Environments: pure `reset` and `step` on padded graphs, and the registry behind `graphrl.make`.

Each environment is a file or a folder that defines actions (`proposal`: distributions for a genetic algorithm;
`ordering`: the next op), observations, rewards and the end of episodes. `base.py` defines their common interface.
`envs` at the top of the repository is a link to this folder.
"""

from graphrl.envs.base import AutoReset, Environment, TimeStep, sample_action
from graphrl.envs.registry import make, register, registered

__all__ = ["AutoReset", "Environment", "TimeStep", "make", "register", "registered", "sample_action"]

if __name__ != "graphrl.envs":  # through the link: would create a second copy of every class, unequal to the first
    raise ImportError(f"this is graphrl.envs, imported as {__name__!r}: write `import graphrl.envs`")
