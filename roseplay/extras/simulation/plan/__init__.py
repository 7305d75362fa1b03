"""``roseplay plan``: which settings on which number of GPUs hold a load within limits, by simulation."""
