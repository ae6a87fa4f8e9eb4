"""Figures of an accelerator, part by part in processes of their own: scripts/accelerator.py."""
