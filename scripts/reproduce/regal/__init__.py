"""Sections of scripts/reproduce_regal.py. A section yields tables."""
