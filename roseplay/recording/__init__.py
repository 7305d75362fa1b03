"""Runs as files: recorded as frames, read again, exported as a trace, a table of tokens and a report."""
