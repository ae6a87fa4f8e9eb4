"""What agents share when they learn: the shape of a learner, losses, descent, devices. Pure functions."""
