"""Constructive rules: one pass, no search."""
