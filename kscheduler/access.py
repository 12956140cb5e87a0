"""Accesses: the bytes that a task reads or writes.

An access is a half-open range ``[start, end)`` of addresses on one device. A strided view is its
span, refined by a *pitch*: the range is then a set of rows of `width` bytes, `pitch` bytes apart,
so that two views of one array (``a[:, 0:3]`` and ``a[:, 3:6]``) are known to be disjoint.

Guarantee: `overlaps` may say yes for ranges that share no byte, and never says no for ranges that
share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["READ", "READ_WRITE", "WRITE", "Access", "overlaps", "strided_access"]

READ = 1
WRITE = 2
READ_WRITE = READ | WRITE


class Access(NamedTuple):
    """Bytes that a task touches.

    Args:
        start: First byte (address).
        end: One past the last byte. ``start == end`` touches nothing.
        mode: `READ`, `WRITE` or `READ_WRITE`.
        pitch: Distance of two rows in bytes; 0 means that every byte of the span is touched.
        width: Bytes touched per row; meaningless when `pitch` is 0.
    """

    start: int
    end: int
    mode: int
    pitch: int = 0
    width: int = 0


def strided_access(
    address: int, shape: Sequence[int], strides_bytes: Sequence[int], item_bytes: int, mode: int
) -> Access:
    """The access of a strided view, exact for empty and stride-0 views.

    Args:
        address: Address of element ``[0, ..., 0]``.
        shape: Elements per dimension.
        strides_bytes: Distance of neighbours per dimension, in bytes; may be 0 or negative.
        item_bytes: Size of one element in bytes.
        mode: `READ`, `WRITE` or `READ_WRITE`.

    Returns:
        An access whose span covers every element; with rows where the view has gaps.
    """
    start, end = address, address + item_bytes
    dims = []
    for extent, stride in zip(shape, strides_bytes, strict=True):
        if extent == 0:
            return Access(address, address, mode)
        if extent == 1 or stride == 0:
            continue
        reach = (extent - 1) * stride
        if stride > 0:
            end += reach
        else:
            start += reach
        dims.append((abs(stride), extent))
    dims.sort()
    width = item_bytes
    for index, (stride, extent) in enumerate(dims):
        if stride > width:
            if all(outer % stride == 0 for outer, _ in dims[index + 1 :]):
                return Access(start, end, mode, stride, width)
            break
        width += (extent - 1) * stride
    return Access(start, end, mode)


def overlaps(a: Access, b: Access) -> bool:
    """Whether two accesses may share a byte (modes are not looked at)."""
    if a.start >= b.end or b.start >= a.end or a.start >= a.end or b.start >= b.end:
        return False
    if a.pitch == 0 or a.pitch != b.pitch:
        return True
    gap = (b.start - a.start) % a.pitch
    return gap < a.width or gap + b.width > a.pitch
