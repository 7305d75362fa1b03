"""``roseplay calibrate``: fits the cost model of simulated hardware to measurements of a deployment."""
