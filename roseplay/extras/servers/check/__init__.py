"""Checks which features of OpenAI's API a server supports, ours or another."""
