"""Sections of `scripts/reproduce_checkpoint.py`; measured.py has the programs and measurements that they share."""
