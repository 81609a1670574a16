"""Quarantined slots: a worker whose request was given to another one may still write to them, so they are not reused
until it cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stoker.engine.processes.messages import Reply
from stoker.engine.slots.ring import Ring, Slot


class _Quarantined(NamedTuple):
    slot: Slot
    suspects: set[int]
    """The workers it could be."""
    last_ticket: int
    """The last one that was given before the doubt."""


class SlotQuarantine:
    """The slots in doubt, by the ticket they were requested with."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._quarantine: dict[int, _Quarantined] = {}

    def __bool__(self) -> bool:
        return bool(self._quarantine)

    def add(self, ticket: int, slot: Slot, suspects: Iterable[int], *, last_ticket: int) -> None:
        """One of `suspects` may have taken this request, and may be writing."""
        self._quarantine[ticket] = _Quarantined(slot, set(suspects), last_ticket)

    def clear(self, worker: int, reply: Reply | None = None) -> None:
        """A worker that is dead, or answers what was requested after the doubt, does not write to the slot any more.

        An answer to an earlier request says nothing: it may have been on its way when the one in doubt was taken.
        """
        for ticket, (slot, suspects, last_ticket) in list(self._quarantine.items()):
            if reply is None or reply.ticket > last_ticket:
                suspects.discard(worker)
            is_over = reply is not None and reply.ticket == ticket
            if reply is not None and is_over and not reply.is_apart and reply.extent != slot.extent:
                self._ring.adopt(slot, reply.extent)
            if is_over or not suspects:
                del self._quarantine[ticket]
                self._ring.empty_behind(slot)
                self._ring.give_back(slot)

    def end(self) -> None:
        """Release all slots: there are no workers any more."""
        while self._quarantine:
            _, (slot, _, _) = self._quarantine.popitem()  # first: Ctrl-C may come before the slot is given back
            self._ring.empty_behind(slot)
            self._ring.give_back(slot)
