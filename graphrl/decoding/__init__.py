"""Decodes a policy's outputs to orders of ops: greedily, by sampling or by beam search; and their log-probabilities."""
