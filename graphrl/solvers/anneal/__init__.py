"""Simulated annealing: one driver (`driver.py`, which explains how to add a move) and sets of moves."""
