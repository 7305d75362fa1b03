"""What the page shows of one KV block, and which part of it a tab may read.

Text belongs to its sender: a tab can read a block's text if one of its own requests holds the block, or held it last.
Of other blocks it only gets the number of tokens, which every tab sees on the map.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from roseplay.engine.messages import BlockInfo
from roseplay.engine.records import BlockChange
from roseplay.recording.request_registry import RequestRegistry, TrackedRequest

INSPECT_S = 3.0  # timeout; the engine replies between two steps, which slow motion may prolong


class BlockTabs:
    """Tracks which tab's request held each block last, so that cached text stays private.

    A step may compute a request before it is registered; ``registered`` then assigns its blocks to their tab. Only one
    thread may call ``take``, ``registered`` and ``clear``.
    """

    def __init__(self, registry: RequestRegistry) -> None:
        self._registry = registry
        self._tabs: dict[int, str] = {}
        self._unregistered: dict[int, int] = {}  # block -> request

    def take(self, change: BlockChange) -> None:
        """Record a block's new holder; without one, it stays with the last one as long as the cache can find it."""
        if change.owner >= 0 or not change.findable:
            self._tabs.pop(change.block, None)
            self._unregistered.pop(change.block, None)
        if change.owner >= 0:
            if (tracked := self._registry.get(change.owner)) is not None:
                self._tabs[change.block] = tracked.tab
            else:
                self._unregistered[change.block] = change.owner

    def clear(self) -> None:
        """Forget all blocks, because another pool replaces them."""
        self._tabs.clear()
        self._unregistered.clear()

    def registered(self, tracked: TrackedRequest) -> None:
        """Assign the blocks that the request held before it was registered to its tab."""
        for block, owner in list(self._unregistered.items()):
            if owner == tracked.request_id:
                self._tabs[block] = tracked.tab
                del self._unregistered[block]

    def readable(self, info: BlockInfo, tab_id: str) -> bool:
        """Whether the tab may read the block's text."""
        if not tab_id:
            return False
        if not info.holders:
            return self._tabs.get(info.block) == tab_id
        return any(tracked.tab == tab_id for holder in info.holders if (tracked := self._registry.get(holder)))


def describe_block(info: BlockInfo, tokenizer: Any, *, readable: bool) -> dict[str, object]:
    """Returns a block as JSON; ``depth`` counts from its prompt's first block, ``text`` is null unless ``readable``."""
    described = asdict(info)
    ids, text = described.pop("token_ids"), None
    if readable and ids:
        text = tokenizer.decode(ids) if tokenizer else " ".join(map(str, ids))
    return {**described, "tokens": len(ids), "text": text}
