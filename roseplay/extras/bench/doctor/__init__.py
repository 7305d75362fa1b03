"""``roseplay doctor``: reports what this machine has, how the engine uses it, and what is missing."""
