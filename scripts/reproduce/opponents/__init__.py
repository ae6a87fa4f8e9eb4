"""Sections of scripts/reproduce_opponents.py. A section yields tables."""
