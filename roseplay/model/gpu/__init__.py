"""What only a GPU needs: steps as CUDA graphs, its memory, rotary embeddings; and a CPU that goes the same way for tests."""
