"""Sections of scripts/reproduce_topoformer.py. A section yields tables."""
