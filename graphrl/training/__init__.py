"""Training: one loop for every learner, with checkpoints, metrics, progress and more than one machine.

`learner.py` says what a learner offers and `loop.py` calls it; `data.py` makes the batches, `checkpoints.py` keeps
what came of them, `metrics.py` and `progress.py` tell of it, `devices.py` spreads the work, `config.py` reads and
writes every setting, `run.py` puts these together. The commands are `graphrl train` and `graphrl evaluate`.
"""
