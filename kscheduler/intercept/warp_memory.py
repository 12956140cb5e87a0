"""Warp's native memory functions: which bytes each of them touches.

Every Warp operation that is not a kernel launch ends in a function of ``runtime.core``. The ones
listed in `MEMORY_FUNCTIONS` become tasks; those that `is_harmless` names touch no array memory; any
other one is a fence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kscheduler.access import READ, READ_WRITE, WRITE, Access
from kscheduler.native import (
    RETURNS_BOOL,
    NativeCall,
    array_access,
    as_address,
    indexed_accesses,
    merge,
    structure_bytes,
)

__all__ = ["MEMORY_FUNCTIONS", "copy_array", "fill_array", "is_harmless", "plain_call"]

_HARMLESS_PREFIXES = (
    "wp_alloc_",
    "wp_bfloat16_",
    "wp_cpu_block_runtime_",
    "wp_cuda_context_get",
    "wp_cuda_device_get",
    "wp_cuda_driver",
    "wp_cuda_is_",
    "wp_cuda_stream_is_",
    "wp_float_to",
    "wp_get_error",
    "wp_half_",
    "wp_host_compiler",
    "wp_is_",
    "wp_libmathdx",
    "wp_nanovdb_version",
    "wp_nvrtc",
    "wp_set_error",
    "wp_take_cpu_block_error",
    "wp_version",
    "wp_cuda_toolkit",
)

_ITEM_BYTES = {"int": 4, "uint": 4, "float": 4, "int64": 8, "uint64": 8, "double": 8}


def is_harmless(name: str) -> bool:
    """Whether a core function reads and writes no array memory that a task could use."""
    return name.startswith(_HARMLESS_PREFIXES)


def span(pointer: Any, count: int, stride: int, item_bytes: int, mode: int) -> Access:
    """`count` items of `item_bytes`, `stride` bytes apart, as one dense range."""
    start = as_address(pointer)
    if count <= 0 or start == 0:
        return Access(start, start, mode)
    return Access(start, start + (count - 1) * stride + item_bytes, mode)


def _memset(args: Sequence[Any]) -> list[Access]:
    pointer, _, size = args
    return [span(pointer, size, 1, 1, WRITE)]


def _memtile(args: Sequence[Any]) -> list[Access]:
    pointer, _, size, count = args
    return [span(pointer, count, size, size, WRITE)]


def _memcpy(args: Sequence[Any]) -> list[Access]:
    destination, source, size = args
    return [span(destination, size, 1, 1, WRITE), span(source, size, 1, 1, READ)]


def _scan(item_bytes: int) -> Callable[[Sequence[Any]], list[Access]]:
    def accesses(args: Sequence[Any]) -> list[Access]:
        source, target, count, source_stride, target_stride, length = args[:6]
        size = item_bytes * length
        return [
            span(source, count, source_stride, size, READ),
            span(target, count, target_stride, size, READ_WRITE),
        ]

    return accesses


def _radix_sort(item_bytes: int) -> Callable[[Sequence[Any]], list[Access]]:
    def accesses(args: Sequence[Any]) -> list[Access]:
        keys, values, count = args[:3]
        value_bytes = args[5]
        # The second half of both arrays is scratch memory.
        return [
            span(keys, 2 * count, item_bytes, item_bytes, READ_WRITE),
            span(values, 2 * count, value_bytes, value_bytes, READ_WRITE),
        ]

    return accesses


def _segmented_sort(args: Sequence[Any]) -> list[Access]:
    keys, values, count, starts, ends, segments = args
    return [
        span(keys, 2 * count, 4, 4, READ_WRITE),
        span(values, 2 * count, 4, 4, READ_WRITE),
        span(starts, segments + 1, 4, 4, READ),
        span(ends, segments, 4, 4, READ),
    ]


MEMORY_FUNCTIONS: dict[str, tuple[Callable[[Sequence[Any]], list[Access]], int]] = {
    "wp_memset_host": (_memset, RETURNS_BOOL),
    "wp_memcpy_h2h": (_memcpy, RETURNS_BOOL),
    **{
        f"wp_array_scan_{kind}_host": (_scan(_ITEM_BYTES[kind]), 0)
        for kind in ("int", "int64", "float", "double")
    },
    **{
        f"wp_radix_sort_pairs_{kind}_host": (_radix_sort(_ITEM_BYTES[kind]), 0)
        for kind in ("int", "uint", "float", "double", "int64", "uint64")
    },
    "wp_segmented_sort_pairs_int_host": (_segmented_sort, RETURNS_BOOL),
    "wp_segmented_sort_pairs_float_host": (_segmented_sort, RETURNS_BOOL),
}


def plain_call(name: str, function: int, args: Sequence[Any]) -> NativeCall:
    """The task of a function of `MEMORY_FUNCTIONS`."""
    describe, check = MEMORY_FUNCTIONS[name]
    label = name.removeprefix("wp_").removesuffix("_host")
    words = tuple(as_address(arg) for arg in args)
    return NativeCall(label, "memory", function, words, check=check, accesses=merge(describe(args)))


def tile_call(function: int, args: Sequence[Any]) -> NativeCall:
    """``wp_memtile_host``: the pattern is copied, since the caller's one is a temporary."""
    import ctypes

    pointer, pattern, size, count = args
    blob = ctypes.string_at(as_address(pattern), size)
    words = (as_address(pointer), 0, size, count)
    accesses = merge(_memtile(args))
    return NativeCall("memtile", "memory", function, words, blob, 0b10, 0, accesses=accesses)


_REGULAR, _INDEXED = 0, 1


def _descriptor(pointer: Any, kind: int, item_bytes: int, mode: int) -> tuple[bytes, list[Access]]:
    """The bytes of an array descriptor and what it reaches."""
    from warp._src.types import array_t, indexedarray_t

    layout = {_REGULAR: array_t, _INDEXED: indexedarray_t}.get(kind)
    if layout is None:
        raise LookupError(kind)
    descriptor = layout.from_address(as_address(pointer))
    if kind == _REGULAR:
        return structure_bytes(descriptor), [array_access(descriptor, item_bytes, mode)]
    return structure_bytes(descriptor), indexed_accesses(descriptor, item_bytes, mode)


def copy_array(function: int, args: Sequence[Any]) -> NativeCall | None:
    """``wp_array_copy_host``; None for descriptors that cannot be listed (fabric arrays)."""
    target, source, target_kind, source_kind, item_bytes = args
    try:
        to, written = _descriptor(target, target_kind, item_bytes, WRITE)
        of, read = _descriptor(source, source_kind, item_bytes, READ)
    except LookupError:
        return None
    blob, offset = _join(to, of)
    words = (0, offset, target_kind, source_kind, item_bytes)
    accesses = merge(written + read)
    return NativeCall(
        "array_copy", "memory", function, words, blob, 0b11, RETURNS_BOOL, accesses=accesses
    )


def fill_array(function: int, args: Sequence[Any]) -> NativeCall | None:
    """``wp_array_fill_host``; None for descriptors that cannot be listed (fabric arrays)."""
    import ctypes

    target, kind, value, item_bytes = args
    try:
        to, written = _descriptor(target, kind, item_bytes, WRITE)
    except LookupError:
        return None
    blob, offset = _join(to, ctypes.string_at(as_address(value), item_bytes))
    words = (0, kind, offset, item_bytes)
    return NativeCall("array_fill", "memory", function, words, blob, 0b101, accesses=merge(written))


def _join(first: bytes, second: bytes) -> tuple[bytes, int]:
    offset = (len(first) + 15) // 16 * 16
    return first.ljust(offset, b"\0") + second, offset
