"""What decisions cost, on the device: pure JAX on padded graphs, float32, for whole populations at once."""
