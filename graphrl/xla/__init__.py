"""Plans that run: compiled modules as graphs, schedules that XLA takes back, and measures of what they save."""
