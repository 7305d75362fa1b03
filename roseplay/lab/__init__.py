"""Experiments: the same seeded traffic under two settings, A and B, each on a fresh engine, and how they compare."""
