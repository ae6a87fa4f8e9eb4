"""Search over placements and keys: whole populations in parallel on the device."""
