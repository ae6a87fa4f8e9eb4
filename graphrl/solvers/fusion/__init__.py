"""Rules and searches on the host for the ops that kernels inline."""
