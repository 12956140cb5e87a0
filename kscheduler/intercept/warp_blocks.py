"""Which memory Warp has allocated for arrays that are alive.

Warp keeps no list of its blocks, so the living arrays are looked through when an unknown address
turns up. Guarantee: `holds` says yes only inside a block that Warp's own allocator
gave to an array which is alive; it may say no there, since the number of searches is limited.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import warp
from warp._src import context

__all__ = ["holds"]

_MAX_SEARCHES = 64  # 0.1 s each, in a large program


class _Blocks:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searches = 0
        self._owners: dict[int, weakref.ref[Any] | None] = {}  # by an address inside the block

    def holds(self, pointer: int) -> bool:
        known: Any = self._owners.get(pointer, self)
        if known is None:
            return False
        if known is not self:
            owner = known()
            if owner is not None and _contains(owner, pointer):
                return True
        with self._lock:
            if self._searches >= _MAX_SEARCHES:
                return False
            self._searches += 1
            found = next((a for a in _living() if _contains(a, pointer)), None)
            self._owners[pointer] = None if found is None else weakref.ref(found)
            return found is not None


def _living() -> list[Any]:
    return [thing for thing in gc.get_objects() if type(thing) is warp.array]


def _contains(array: Any, pointer: int) -> bool:
    # Another thread may be about to make the array, and a user's deleter may free anything.
    allocator = getattr(vars(array).get("deleter"), "__self__", None)
    if not isinstance(allocator, (context.CpuDefaultAllocator, context.CpuPinnedAllocator)):
        return False
    start = getattr(array, "ptr", None) or 0
    return bool(start <= pointer < start + getattr(array, "capacity", 0))


holds = _Blocks().holds
