"""The package of the extra ``ray``. Import it from here, so that one place says how to install it.

Raises:
    ImportError: on import, one line, if it is missing.
"""

from __future__ import annotations

try:
    import ray as ray
    from ray import serve as serve
except ImportError as error:
    raise ImportError(f"{error.name} is not installed: pip install 'roseplay[ray]'", name=error.name) from None
