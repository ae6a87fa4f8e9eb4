"""Sections of reproduce_sharding.py."""
