"""Shared code of the launchers in scripts/."""
