"""Snapshots of memory by address: what `audit` and `verify` compare and put back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np

from kscheduler.access import Access

__all__ = ["Snapshot", "changed_ranges", "covers", "merge_spans", "read_bytes"]


def read_bytes(start: int, end: int) -> np.ndarray:
    """A view of the bytes ``[start, end)`` of this process, uint8."""
    kind = ctypes.c_uint8 * (end - start)
    return np.frombuffer(memoryview(kind.from_address(start)), dtype=np.uint8)


def merge_spans(accesses: Iterable[Access]) -> list[tuple[int, int]]:
    """Disjoint sorted spans that cover the accesses."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted((a.start, a.end) for a in accesses if a.start < a.end):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


class Snapshot:
    """A copy of some memory.

    Args:
        spans: Disjoint ranges of addresses.
    """

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self.spans = list(spans)
        self._copies = [read_bytes(start, end).copy() for start, end in self.spans]

    def restore(self) -> None:
        """Writes the copy back."""
        for (start, end), copy in zip(self.spans, self._copies, strict=True):
            read_bytes(start, end)[:] = copy

    def difference(self, other: Snapshot) -> tuple[int, int] | None:
        """The first range in which two snapshots of the same spans differ, None if none does."""
        for (start, _), a, b in zip(self.spans, self._copies, other._copies, strict=True):
            changed = np.flatnonzero(a != b)
            if changed.size:
                return start + int(changed[0]), start + int(changed[-1]) + 1
        return None

    def changes(self) -> list[tuple[int, int]]:
        """Runs of bytes that are no longer what they were, as ``[start, end)`` addresses."""
        found: list[tuple[int, int]] = []
        for (start, end), copy in zip(self.spans, self._copies, strict=True):
            now = read_bytes(start, end)
            if not np.array_equal(now, copy):
                found += changed_ranges(copy, now, start)
        return found


def changed_ranges(before: np.ndarray, after: np.ndarray, start: int) -> list[tuple[int, int]]:
    """Runs of differing bytes, as addresses counted from `start`."""
    where = np.flatnonzero(before != after)
    if where.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(where) > 1)
    firsts = np.concatenate(([where[0]], where[breaks + 1]))
    lasts = np.concatenate((where[breaks], [where[-1]]))
    return [(start + int(a), start + int(b) + 1) for a, b in zip(firsts, lasts, strict=True)]


def covers(accesses: Iterable[Access], start: int, end: int) -> bool:
    """Whether the accesses contain every byte of ``[start, end)``."""
    touched = np.zeros(end - start, dtype=bool)
    for access in accesses:
        low, high = max(access.start, start), min(access.end, end)
        if low >= high:
            continue
        if access.pitch == 0:
            touched[low - start : high - start] = True
        else:
            offset = (np.arange(low, high) - access.start) % access.pitch
            touched[low - start : high - start] |= offset < access.width
    return bool(touched.all())
