"""Search that proves its answer."""
