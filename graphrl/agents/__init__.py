"""Agents: one folder a published system (regal, topoformer, go, egrl), and the algorithms that they share.

Each folder has the same files: config, network, learner (DESIGN.md 5). A trained agent is a solver too, so that tables
compare it with the classical ones. The code stands here; `agents` at the top of the repository is a link to this
folder.
"""

if __name__ != "graphrl.agents":  # through the link: a second copy of every class, and nothing would be equal to itself
    raise ImportError(f"this is graphrl.agents, imported as {__name__!r}: write `import graphrl.agents`")
