"""Sections of scripts/reproduce_egrl.py, a file each. A section yields tables."""
