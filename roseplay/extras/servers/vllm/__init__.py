"""vLLM seen from inside, by a probe in its scheduler."""
