"""State slots: what each running request needs beside KV blocks if the model has recurrent layers."""

from __future__ import annotations

from roseplay.core.request import Request

NOBODY = -1  # in place of a request's id


class StateSlots:
    """Assigns slots to requests. A request takes a slot when it is admitted and releases it with its blocks.

    Slots are not cleared: a request that starts at its first token does not read the old content.

    Args:
        num_slots: number of slots for requests, numbered from 1; 0 for a model without recurrent layers, whose requests
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
        """Returns the slots that were taken or released since the last call, each with the id of the request that has
        it now, or ``NOBODY``. The first call returns all slots."""
        changed, self._changed = self._changed, {}
        return changed

    def take(self, request: Request) -> None:
        """Give the request a slot if it needs one. Raises ``RuntimeError`` if none is free or it already has one."""
        if not self.used:
            return
        if request.state_slot or not self._free:
            raise RuntimeError(f"{request} has slot {request.state_slot}, {len(self._free)} are free")
        request.state_slot = self._free.pop()
        self._holders[request.state_slot] = request
        self._changed[request.state_slot] = request.request_id

    def release(self, request: Request) -> None:
        """Release the request's slot, if it has one. Raises ``RuntimeError`` if the slot is another request's."""
        slot = request.state_slot
        if slot == 0:
            return
        if self._holders.get(slot) is not request:
            raise RuntimeError(f"slot {slot} is not that of {request}")
        del self._holders[slot]
        self._free.append(slot)
        self._changed[slot] = NOBODY
        request.state_slot = 0
