"""Attention for CPUs: blocks read where they lie, by kernels that Numba compiles."""
