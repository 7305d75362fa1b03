"""Computes single tokens of layers with a recurrent state in one pass over the states, which stay in their slots."""
