"""Costs of decisions on the device: pure JAX on padded graphs, float32, for whole populations in parallel."""
