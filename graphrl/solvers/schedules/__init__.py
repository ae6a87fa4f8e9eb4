"""Search over explicit schedules on the host: an order of ops, a placement, and the send time of every tensor."""
