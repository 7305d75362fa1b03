"""Attention for CPUs: blocks read in place by kernels that Numba compiles, or gathered for torch's own attention."""
