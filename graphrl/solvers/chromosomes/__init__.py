"""Search over placements and keys, whole populations at once on the device."""
