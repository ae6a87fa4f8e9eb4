"""`graphrl.checkpoint`: what gradients keep.

- function.py, curve.py: the public functions; settings.py: what a user may ask; report.py, plot.py: what was decided;
- flat.py: a function of anything as one of arrays; program.py, plan.py, rewrite.py: a function as
  equations, decisions about it, and the function that follows them;
- derivative.py, solid.py, copies.py, gradient.py, levels.py with nodes.py, forward.py and backward.py: what there is
  to decide, for `graphrl.xla.checkpoint.solvers`; graph_gradient.py: the same for the graph of a training step;
- seconds.py, inlined.py, fusing.py, kinds.py: the model of time and fusion;
- search.py, decide.py, explain.py, origins.py: a solver's choice, as a plan, and in words and lines of code;
- verify.py: what XLA says that a plan needs;
- planner.py: all of it together for a function, in memory and on disk.
"""
