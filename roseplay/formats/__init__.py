"""Reads and writes text, JSON, tables and reports, independently of engines."""
