"""What agents share when they learn: losses, descent, policies as files, devices. Pure functions."""
