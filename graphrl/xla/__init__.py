"""Execution of plans: XLA's compiled modules as graphs, and schedules returned to XLA.

- jit.py: `graphrl.jit` and `graphrl.compile`; settings.py: their options; report.py: memory and time saved;
- decorated.py: the base of `graphrl.jit`'s and `graphrl.checkpoint`'s functions; libraries.py: modules of Flax NNX and
  Equinox as arguments;
- hook.py, callback.py: compilation with a given schedule;
- donation.py: donated arguments of a program whose schedule was changed;
- planning/: decisions about captured modules, in memory and on disk;
- assignment/: the temporary memory of an order, as XLA assigns buffers;
- recompute/: instructions to compute again;
- checkpoint/: `graphrl.checkpoint`;
- explain/: `graphrl.explain`.
"""
