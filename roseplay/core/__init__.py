"""What to compute next: requests, blocks, the prefix cache and the scheduler. Pure Python, no torch."""
