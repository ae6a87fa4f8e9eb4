"""Sections of scripts/reproduce_sharding.py. A section yields tables."""
