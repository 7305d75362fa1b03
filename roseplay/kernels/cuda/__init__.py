"""Kernels for GPUs: attention and rotary embeddings in Triton, steps as CUDA graphs, and an emulation on CPUs."""
