"""Search over orders of the ops of one device."""
