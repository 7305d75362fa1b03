"""How text, JSON, tables and reports are written and read; knows nothing of engines."""
