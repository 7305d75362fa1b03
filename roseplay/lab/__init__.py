"""The Lab: the same seeded traffic played under two settings, each on an engine of its own, and what came of it."""
