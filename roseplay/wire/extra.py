"""The packages of the extra ``wire``. Import them from here, so that one place explains how to install them.

Raises:
    ImportError: on import, with a one-line message, if one of them is missing.
"""

from __future__ import annotations

try:
    import msgspec as msgspec
    import zmq as zmq
except ImportError as error:
    raise ImportError(f"{error.name} is not installed: pip install 'roseplay[wire]'", name=error.name) from None


class WireError(ValueError):
    """A message has the wrong format, or an endpoint is invalid. The text describes the problem in one line."""
