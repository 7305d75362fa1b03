"""Experiments: the same seeded traffic under different settings, each on a fresh engine, and their comparison."""
