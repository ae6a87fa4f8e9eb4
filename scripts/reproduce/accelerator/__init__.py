"""Measurements of an accelerator, a process for each part: scripts/accelerator.py."""
