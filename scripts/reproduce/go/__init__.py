"""Sections of `scripts/reproduce_go.py`."""
