"""Single tokens of layers with a recurrent state, computed in one pass over the states, which stay in their slots."""
