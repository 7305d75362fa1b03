"""Any result of the lab, a comparison, a sweep or a search: what is done with it depends on its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roseplay.lab.document import checked_document, read_document
from roseplay.lab.points_document import checked_points, is_of_points
from roseplay.lab.points_report import points_report
from roseplay.lab.result_report import result_report


def parse_result(content: bytes) -> dict[str, Any]:
    """Parse and check a result from a file; its summary is computed again.

    Raises:
        ValueError: what is wrong with it, in one sentence.
    """
    document = read_document(content)
    return checked_points(document) if is_of_points(document) else checked_document(document)


def html_report(document: Mapping[str, Any]) -> str:
    """Returns the report of a checked document that has its summary, as one HTML file."""
    return points_report(document) if is_of_points(document) else result_report(document)
