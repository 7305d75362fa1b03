"""State slots: beside KV blocks, what a model with recurrent layers needs for each running request."""

from __future__ import annotations

from roseplay.core.request import Request

NOBODY = -1  # in place of a request's id


class StateSlots:
    """Which request has which slot. A request takes one when it is admitted and gives it up with its blocks.

    A slot's content needs no clearing: a request that starts at its first token does not read it.

    Args:
        num_slots: those that requests can have, numbered from 1; 0 for a model without recurrent layers, whose requests
            need none.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots, 0, -1))
        self._holders: dict[int, Request] = {}
        self._changed = dict.fromkeys(range(1, num_slots + 1), NOBODY)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> bool:
        """Whether requests need slots at all."""
        return self.num_slots > 0

    @property
    def exhausted(self) -> bool:
        """Whether another request would have to wait for a slot."""
        return self.used and not self._free

    def take_changed(self) -> dict[int, int]:
        """Slots that were taken or given up since the last call, with the ids of the requests that have them now, or
        ``NOBODY``; at first, all of them."""
        changed, self._changed = self._changed, {}
        return changed

    def take(self, request: Request) -> None:
        """Give the request a slot if it needs one. Raises ``RuntimeError`` when none is free or it has one already."""
        if not self.used:
            return
        if request.state_slot or not self._free:
            raise RuntimeError(f"{request} has slot {request.state_slot}, {len(self._free)} are free")
        request.state_slot = self._free.pop()
        self._holders[request.state_slot] = request
        self._changed[request.state_slot] = request.request_id

    def release(self, request: Request) -> None:
        """Take the request's slot back, if it has one. Raises ``RuntimeError`` when the slot is not its own."""
        slot = request.state_slot
        if slot == 0:
            return
        if self._holders.get(slot) is not request:
            raise RuntimeError(f"slot {slot} is not that of {request}")
        del self._holders[slot]
        self._free.append(slot)
        self._changed[slot] = NOBODY
        request.state_slot = 0
