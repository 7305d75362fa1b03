"""CSV that is safe to open in a spreadsheet: no text runs as a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def spreadsheet(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Returns CSV in UTF-8 with a header; ``None`` is an empty cell."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue().encode("utf-8", "replace")


def cell(text: str | None) -> str | None:
    """Returns untrusted text for a cell, with an apostrophe before text that a spreadsheet would run as a formula."""
    return "'" + text if text and text[0] in "=+-@\t\r" else text
