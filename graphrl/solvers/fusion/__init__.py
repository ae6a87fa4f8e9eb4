"""Rules and searches for what kernels compute themselves, on the host."""
