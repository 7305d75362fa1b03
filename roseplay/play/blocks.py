"""What the page says of one KV block, and what of that a tab may read.

Text is for whoever sent it: a tab reads a block's text if one of its own requests holds the block, or held it last.
Of all other blocks (other tabs' and programs' requests) it learns the number of tokens, as everybody sees on the map.
"""

from __future__ import annotations

from typing import Any

from roseplay.engine.messages import BlockChange, BlockInfo
from roseplay.recording.request_registry import RequestRegistry

INSPECT_S = 3.0  # the engine answers between two steps; slow motion may make that long


class BlockTabs:
    """Which tab's request held each block last, so that what stays cached stays that tab's. One thread calls ``take``."""

    def __init__(self, registry: RequestRegistry) -> None:
        self._registry = registry
        self._tabs: dict[int, str] = {}

    def take(self, change: BlockChange) -> None:
        """Note who holds a block now; nobody leaves it with who had it before, as long as it can be found."""
        if change.owner >= 0:
            tracked = self._registry.get(change.owner)
            self._tabs[change.block] = tracked.tab if tracked else ""
        elif not change.findable:
            self._tabs.pop(change.block, None)

    def readable(self, info: BlockInfo, tab_id: str) -> bool:
        """Whether the tab may read what is in the block."""
        if not tab_id:
            return False
        if not info.holders:
            return self._tabs.get(info.block) == tab_id
        return any(tracked.tab == tab_id for holder in info.holders if (tracked := self._registry.get(holder)))


def describe_block(info: BlockInfo, tokenizer: Any, *, readable: bool) -> dict[str, Any]:
    """A block as JSON: state, holders' ids, place (0 is its prompt's first block), tokens, text or null, last step."""
    text = None
    if readable and info.token_ids:
        text = tokenizer.decode(info.token_ids) if tokenizer else " ".join(map(str, info.token_ids))
    return {
        "block": info.block,
        "state": info.state,
        "holders": info.holders,
        "depth": info.depth,
        "tokens": len(info.token_ids),
        "text": text,
        "last_use": info.last_use,
        "findable": info.findable,
    }
