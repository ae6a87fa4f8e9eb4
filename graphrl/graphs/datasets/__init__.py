"""Graphs for training and comparison.

`sets.py` loads graphs by name. `families.py` names the generators of random graphs: `layered.py`, `regal_like.py`,
`known_optima.py` and pipelines; `kinds/` draws from many kinds, for training. `zoo/` has real programs, and
`workloads/` the graphs that papers report on.
"""
