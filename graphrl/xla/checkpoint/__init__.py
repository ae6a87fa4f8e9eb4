"""`graphrl.checkpoint`: decides which values a gradient keeps, computes again or moves to the host.

A *level* is the function, or one loop body in it; a *place* is an equation's index there. A *kernel* is an op of the
backward pass that writes to memory. A *segment* is a run of equations that are computed again together, or keep what
jax keeps by default. A *stretch* is a block of loop steps that are computed again together. Files, from call to report:

| subject | file |
|---|---|
| public functions | function.py: the functions; settings.py: checks of their options and arguments |
| programs and plans | program.py; sizes.py: sizes of symbolic dimensions |
| the gradient of a program | derivative.py: the traced gradient; gradient.py: as arrays for solvers |
| the gradient of a graph | graph_gradient.py: the same for the graph of a training step |
| several devices | shards.py and factors.py: how values are split; collectives.py: what one device runs |
| fusion | equations.py: kinds of equations; fusion.py: which values are written |
| memory | memory.py; backward.py: the backward pass |
| time | seconds.py |
| functions that follow a plan | rewrite.py; primitives.py: barriers, and copies to the host |
| the best plan | solvers/auto.py decides; search.py meets the limit, also as XLA compiles it |
| planning a function, stored plans | plans.py: all of it together, in memory and on disk |
| the report | report.py |
| training steps: `graphrl.fit` | fit.py; fit_search.py, largest.py; steps.py: a step under plans; microbatches.py |
| whole steps on several devices | step_shards.py |
"""
