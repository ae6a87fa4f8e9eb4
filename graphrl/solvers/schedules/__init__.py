"""Search over explicit schedules on the host: an order of ops, a placement, and when every tensor is sent."""
