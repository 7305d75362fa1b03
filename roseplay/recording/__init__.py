"""Records runs as frames in a file, reads them back, and exports them as traces, tables and reports."""
