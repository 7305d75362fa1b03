"""Routes, named endpoints, the checks in front of both, and the files that browsers fetch."""
