"""Plans that run: XLA's compiled modules as graphs, and schedules handed back to XLA.

- jit.py: `graphrl.jit` and `graphrl.compile`; settings.py: what a user may ask of them; report.py: what planning
  gained;
- libraries.py: modules of Flax NNX and Equinox as arguments;
- hook.py, callback.py: XLA's compiler with a say in its schedule;
- planning/: from a captured module to a decision about it, in memory and on disk;
- assignment/: what an order's temporaries will take, as XLA assigns buffers; recompute/: what to compute again;
- checkpoint/: `graphrl.checkpoint`.
"""
