"""The page: its server, what stands behind its controls, and its layout. ``static`` has its scripts and styles."""
