"""Kernels for CPUs that Numba compiles, and the tape on which a step's calls are recorded."""
