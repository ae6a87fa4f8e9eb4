"""Simulated annealing over the topological orders of one device (method "anneal")."""
