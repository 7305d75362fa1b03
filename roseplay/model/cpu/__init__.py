"""What a CPU computes with: kernels that Numba compiles, and steps recorded as lists of their calls."""
