"""Simulated annealing: one driver (`driver.py`, which says how a move is added) and sets of moves."""
