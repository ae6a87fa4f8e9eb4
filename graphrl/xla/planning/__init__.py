"""Decisions about compiled modules: search, prediction, and a cache of decisions."""
