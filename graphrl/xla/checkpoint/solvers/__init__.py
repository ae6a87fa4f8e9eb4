"""Solvers that choose which values a gradient keeps, computes again and moves to the host.

level.py: the problem as arrays, and its repeated parts; choice.py, price.py: choices, their memory and time; goal.py:
limits as objectives. starts.py (regular cuts, greedy choices, moves to the host), integer_programs.py (minimum cuts,
knapsacks, CP-SAT) and anneal.py: the methods. auto.py: all solvers by name.
"""
