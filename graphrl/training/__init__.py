"""Training: one loop for every learner, with checkpoints, metrics, progress and several machines.

`agent.py` defines the interface of an agent, `loop.py` the loop that calls it, and `run.py` runs the loop in a folder.
`sweep.py` repeats that for seeds and settings. `data.py` builds the batches, `checkpoints.py` stores states and
parameters, `folder.py` manages a run's folder and metrics, `devices.py` distributes the work, `config.py` reads and
writes every setting. The commands are `graphrl train` and `graphrl evaluate`.
"""
