"""Solvers that choose which values a gradient keeps, computes again and moves.

level.py: the problem as arrays, and what repeats in it; choice.py, price.py: choices and their cost; goal.py: limits as
energies. starts.py, knapsack.py, cp_sat.py, anneal.py: the methods. auto.py: all solvers by name.
"""
