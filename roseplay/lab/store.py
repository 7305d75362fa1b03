"""The newest results, in memory; a browser keeps those that should last."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from typing import Any

CAPACITY = 12


class Store:
    """Documents by id; the oldest are dropped."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._documents: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def keep(self, document: dict[str, Any]) -> str:
        """Store a result that was made here; returns its id."""
        return self._keep(document["id"], document)

    def keep_opened(self, document: dict[str, Any]) -> str:
        """Store a result from a file under an id made from its content: its own id may be taken here."""
        text = json.dumps({**document, "summary": None}, sort_keys=True)
        return self._keep("file-" + hashlib.sha256(text.encode()).hexdigest()[:12], document)

    def get(self, document_id: str) -> dict[str, Any] | None:
        return self._documents.get(document_id)

    def _keep(self, document_id: str, document: dict[str, Any]) -> str:
        with self._lock:
            self._documents[document_id] = document
            self._documents.move_to_end(document_id)
            while len(self._documents) > self._capacity:
                self._documents.popitem(last=False)
        return document_id
