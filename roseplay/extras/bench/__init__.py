"""Measures an engine from the command line: ``roseplay bench``, and ``roseplay doctor``."""
