"""Attention for CPUs, by kernels that Numba compiles and that read blocks in place."""
