"""Sharding problems: a strategy for every op of a model, so that the sum of costs is least and memory fits.

The problem is that of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism. problem.py has the problem, its
file and its exact costs; datasets.py problems by name, with the random ones of layers.py; plan.py the answer, and
picture.py its picture. reduce.py makes problems smaller without losing an optimum, by the compiled loops of rules.py;
messages.py bounds the cost from below; moves.py improves plans; baseline.py makes a quick one; search.py
is the search, worker.py what each of its threads does, with multipliers.py, exact.py and guide.py.
"""
