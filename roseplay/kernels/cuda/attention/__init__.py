"""Attention for GPUs, in Triton."""
