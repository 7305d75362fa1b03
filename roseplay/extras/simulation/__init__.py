"""Simulated hardware: how long a step takes on a GPU that is not here, and a runner that waits for it.

Needs neither torch nor a GPU. The costs are estimates; ``evidence`` says how far they can be trusted.
"""
