"""Recomputation: changes compiled programs such that they compute values again instead of keeping them.

| subject | file |
|---|---|
| instructions that may be computed again, and their cost | candidates.py |
| greedy choice among them in a schedule | greedy.py |
| a program's plan and order | plan.py |
| residuals: arrays that a forward loop keeps for a backward loop | loops.py |
| choice of residuals to recompute, and the instructions that do it | residuals.py |
| changes to the module | rewrite.py; edit.py: single edits of its message |
"""
