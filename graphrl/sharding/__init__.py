"""Sharding problems: a strategy for every op of a model, so that the sum of costs is least and memory fits.

The problem is that of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism. problem.py has the problem, its
file and its exact costs; plan.py the answer; reduce.py makes problems smaller without losing an optimum; messages.py
bounds the cost from below; moves.py improves plans; search.py is the search.
"""
