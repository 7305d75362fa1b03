"""The packages of the extra ``wire``. What needs them imports them from here, so that one place says how to get them.

Raises:
    ImportError: on import, one line, if one of them is missing.
"""

from __future__ import annotations

try:
    import msgspec as msgspec
    import zmq as zmq
except ImportError as error:
    raise ImportError(f"{error.name} is not installed: pip install 'roseplay[wire]'", name=error.name) from None


class WireError(ValueError):
    """A message is not of its format. The message says what is wrong in one line."""
