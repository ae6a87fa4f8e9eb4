"""`graphrl.checkpoint`: which values a gradient keeps, computes again or moves to the host.

Chapters, from a call to its report:

| question | file |
|---|---|
| What can a user ask? | function.py: the public functions; settings.py: their options, and a call's arguments |
| What is a program, a plan? | program.py; sizes.py: sizes of symbolic dimensions |
| What is its gradient? | derivative.py: the traced gradient; gradient.py: as arrays for solvers |
| And a graph's? | graph_gradient.py: the same for the graph of a training step |
| What fuses? | equations.py: kinds of equations; fusion.py: which values are written |
| What takes memory? | memory.py |
| What takes time? | seconds.py |
| How is a function made to follow a plan? | rewrite.py; primitives.py: barriers, and copies to the host |
| Which plan is best? | solvers/auto.py decides; search.py meets the limit, also as XLA compiles it |
| Where are plans kept? | plans.py: all of it together for a function, in memory and on disk |
| What was decided? | report.py |
"""
