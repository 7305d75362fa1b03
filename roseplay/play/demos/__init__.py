"""Guided demos: settings, traffic and captions as data, played on the running engine."""
