"""Environments: pure `reset` and `step` on padded graphs, and the registry behind `graphrl.make`.

One file or folder per environment: the decision of one step (`proposal`: the proposals of a genetic algorithm;
`ordering`: the next op), its observation, its reward and its end. `base.py` defines their common interface. `envs` at
the top of the repository is a link to this folder.
"""

if __name__ != "graphrl.envs":  # through the link: would create a second copy of every class, unequal to the first
    raise ImportError(f"this is graphrl.envs, imported as {__name__!r}: write `import graphrl.envs`")
