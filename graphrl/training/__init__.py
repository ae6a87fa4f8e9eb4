"""Training: one loop for every learner, with checkpoints, metrics, progress and more than one machine.

`agent.py` says what an agent offers and `run.py` has the loop that calls it. `data.py` makes the batches,
`checkpoints.py` keeps states and parameters, `folder.py` has a run's folder and metrics, `devices.py` spreads the work,
`config.py` reads and writes every setting. The commands are `graphrl train` and `graphrl evaluate`.
"""
