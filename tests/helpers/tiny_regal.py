"""Settings of `graphrl train regal` for seconds, equal in all tests so that they share compiled programs."""

REGAL = [
    "data.train=regal-like:12x8@10000",
    "data.validation=regal-like:12x2@5000",
    "data.test=regal-like:12x2",
    "data.graphs=2",
    "data.buckets=1",
    "agent.evaluations=160",
    "agent.actions=2",
    "agent.rounds=1",
    "agent.width=8",
    "training.steps=3",
    "training.validate_every=3",
]
