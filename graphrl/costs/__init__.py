"""What a decision costs: pure JAX on padded graphs, and one exact twin on the host."""
