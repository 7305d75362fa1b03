"""Prometheus' text format, read no further than is needed: the samples of a few families."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = Mapping[str, str]


def samples(text: str, prefix: str) -> Iterator[tuple[str, Labels, float]]:
    """Yields name, labels and value of each sample whose name begins with ``prefix``; lines that cannot be read are skipped."""
    for line in text.splitlines():
        found = _SAMPLE.match(line) if line.startswith(prefix) else None
        if found is None:
            continue
        name, labels, written = found.groups()
        try:
            value = float(written)
        except ValueError:
            continue
        if math.isfinite(value):
            yield name, dict(_LABEL.findall(labels or "")), value
