"""``roseplay doctor``: what this machine has, what the engine makes of it, and what is missing."""
