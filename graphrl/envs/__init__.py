"""Environments: pure `reset` and `step` on padded graphs, and the registry behind `graphrl.make`.

One file or folder an environment: what one step decides (`proposal`: the proposals of a genetic algorithm; `ordering`:
the next op), its observation, its reward and its end. `base.py` has the contract of all. `envs` at the top of the
repository is a link to this folder.
"""

if __name__ != "graphrl.envs":  # through the link: a second copy of every class, and nothing would be equal to itself
    raise ImportError(f"this is graphrl.envs, imported as {__name__!r}: write `import graphrl.envs`")
