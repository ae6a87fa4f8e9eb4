"""`graphrl.checkpoint`: which values a gradient keeps, computes again or moves to the host.

- function.py, curve.py: the public functions; settings.py: their options; report.py: reports and pictures;
- program.py: a function as equations, and plans for it; rewrite.py: the function that follows a plan;
  rules.py, primitives.py: equations with derivatives of their own, and barriers and copies;
- derivative.py, gradient.py, passes.py: the decision problem of a traced function, as arrays for `solvers`;
  graph_gradient.py: the same for the graph of a training step; sizes.py: sizes of symbolic dimensions;
- fusion.py, memory.py, seconds.py: the model of fusion, memory and time;
- search.py: a solver's choice within the limit; verify.py: the memory that XLA says a plan needs;
- planner.py: all of it together for a function, in memory and on disk.
"""
