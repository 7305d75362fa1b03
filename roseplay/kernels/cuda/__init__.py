"""For GPUs: attention and rotary embeddings in Triton, steps as CUDA graphs; and a CPU that goes the same way for tests."""
