"""`graphrl.checkpoint`: what gradients keep.

- function.py, curve.py: the public functions; settings.py: what a user may ask; report.py, plot.py: what was decided;
- program.py, plan.py, rewrite.py: a function as equations, decisions about it, and the function that follows them;
- derivative.py, solid.py, values.py, gradient.py: what there is to decide, for `graphrl.solvers.budgets`; seconds.py:
  the model of time and fusion; decide.py, explain.py: a solver's choice as a plan, and in words;
- planner.py: all of it together, in memory and on disk.
"""
