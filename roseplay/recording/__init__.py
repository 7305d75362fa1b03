"""Runs that outlive the moment: recorded as frames, replayed by the page, exported as trace, table and report."""
