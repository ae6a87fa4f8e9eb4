"""Programs that a changed schedule could spoil: what each shows under `jax.jit` it has to show under `graphrl.jit`.

- compiler.py: what a case is given, and what of its observations counts; run.py: a case in a process of its own;
- effects.py, randomness.py, calls.py, control.py, arrays.py, donation.py, options.py, devices.py: the cases.
"""
