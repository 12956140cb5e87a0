"""Hazards: which earlier tasks a new task must wait for, in plain Python.

This is the reference for the native tracker (`kscheduler._core.HazardTracker`): it compares every
pair of tasks and names every hazard. The native tracker leaves out edges that follow from others,
so the two agree on the transitive closure of their edges, not edge by edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kscheduler.access import READ, WRITE, Access, overlaps

__all__ = ["HazardTracker", "hazards_between"]


def hazards_between(earlier: Sequence[Access], later: Sequence[Access]) -> set[str]:
    """The hazards that order two tasks.

    Args:
        earlier: Accesses of the task that comes first in program order.
        later: Accesses of the task that comes second.

    Returns:
        A subset of ``{"RAW", "WAR", "WAW"}``; empty if the tasks are independent.
    """
    found = set()
    for a in earlier:
        for b in later:
            if not overlaps(a, b):
                continue
            if a.mode & WRITE and b.mode & READ:
                found.add("RAW")
            if a.mode & READ and b.mode & WRITE:
                found.add("WAR")
            if a.mode & WRITE and b.mode & WRITE:
                found.add("WAW")
    return found


class HazardTracker:
    """Remembers every task and compares all pairs."""

    def __init__(self) -> None:
        self._tasks: list[tuple[int, tuple[Access, ...]]] = []

    def add(
        self,
        id: int,
        accesses: Sequence[Access],
        is_done: Callable[[int], bool] | None = None,
    ) -> list[int]:
        """Adds a task.

        Args:
            id: Larger than every id before.
            accesses: What the task reads and writes.
            is_done: Whether an earlier task has finished; None if none ever has.

        Returns:
            Ids of the unfinished tasks that this one must wait for, ascending.

        Raises:
            ValueError: If ids do not strictly increase.
        """
        if self._tasks and id <= self._tasks[-1][0]:
            raise ValueError("task ids must strictly increase")
        found = self._conflicting(accesses, is_done)
        self._tasks.append((id, tuple(accesses)))
        return found

    def query(self, access: Access, is_done: Callable[[int], bool] | None = None) -> list[int]:
        """The ids that a host access must wait for; remembers nothing."""
        return self._conflicting((access,), is_done)

    def clear(self) -> None:
        """Forgets every task."""
        self._tasks.clear()

    def _conflicting(
        self, accesses: Sequence[Access], is_done: Callable[[int], bool] | None
    ) -> list[int]:
        return [
            id
            for id, earlier in self._tasks
            if hazards_between(earlier, accesses) and not (is_done and is_done(id))
        ]
