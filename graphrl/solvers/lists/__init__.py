"""Search over lists of ops, where transfers cost nothing."""
