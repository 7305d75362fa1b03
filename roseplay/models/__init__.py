"""The models on this machine, and what is known about each before it is loaded."""
