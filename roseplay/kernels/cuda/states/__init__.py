"""Computes prompts of layers with a recurrent state on a GPU in a few launches each, whatever their number and length."""
