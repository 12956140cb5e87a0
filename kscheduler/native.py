"""Native calls: what a CPU task consists of, and how Warp's launches become one.

A compiled Warp kernel on the CPU is a C function of launch bounds and an argument structure; a
memset is a C function of plain numbers. A `NativeCall` holds either, with the bytes it touches and
the objects that must live until it has run, so that it can run later and on any thread.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kscheduler import _core
from kscheduler.access import READ, READ_WRITE, WRITE, Access, strided_access

__all__ = [
    "BLOCK_ERROR",
    "RETURNS_BOOL",
    "NativeCall",
    "array_access",
    "array_fields",
    "as_address",
    "indexed_accesses",
    "malloc_block",
    "structure_bytes",
]

RETURNS_BOOL = 1
BLOCK_ERROR = 2


@dataclass(slots=True)
class NativeCall:
    """One C call that a worker thread can make.

    Attributes:
        name: What a user calls it (the kernel's key, or ``"memset"``).
        kind: ``"warp"`` or ``"memory"``.
        function: Address of the code.
        args: Up to eight words; those named in `blob_args` are offsets into `blob`.
        blob: Structures that the arguments point to.
        blob_args: Bit i says that ``args[i]`` is an offset.
        check: `RETURNS_BOOL`, `BLOCK_ERROR` or 0.
        lanes: One copy of the code per lane, where the module keeps state in statics.
        accesses: Every byte that the call reads or writes; None if that is not known.
        keep: Objects that own the memory.
    """

    name: str
    kind: str
    function: int
    args: tuple[int, ...]
    blob: bytes = b""
    blob_args: int = 0
    check: int = 0
    lanes: _core.LaneCode | None = None
    accesses: tuple[Access, ...] | None = ()
    keep: tuple[Any, ...] = ()

    def run_here(self) -> None:
        """Runs the call on this thread, now. Raises RuntimeError if it reports a failure."""
        replay = _core.Replay(1)
        self.add_to(replay)
        replay.begin()
        replay.advance()
        error = replay.take_error()
        if error is not None:
            raise RuntimeError(f"{self.name}: {error[0]}")

    def add_to(self, replay: _core.Replay, parent: int = -1, side: int = 0) -> int:
        """Adds the call to a native graph; returns its node."""
        return replay.add_call(
            self.function,
            self.args,
            self.blob,
            self.blob_args,
            self.check,
            self.lanes,
            parent,
            side,
        )


def as_address(value: Any) -> int:
    """The integer that ctypes would pass for a pointer or number argument."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, ctypes.c_void_p):
        return value.value or 0
    if hasattr(value, "_obj"):  # ctypes.byref
        return ctypes.addressof(value._obj)
    if isinstance(value, ctypes._Pointer):
        return ctypes.addressof(value.contents) if value else 0
    if isinstance(value, ctypes._SimpleCData):
        return int(value.value)
    return ctypes.addressof(value)


def structure_bytes(value: Any) -> bytes:
    """The bytes of a ctypes value or structure."""
    return ctypes.string_at(ctypes.addressof(value), ctypes.sizeof(value))


def array_access(array: Any, item_bytes: int, mode: int, pointer: int | None = None) -> Access:
    """The access of a Warp array descriptor (``array_t``); `pointer` replaces its data pointer."""
    return _descriptor_access(structure_bytes(array), item_bytes, mode, pointer)


_DESCRIPTOR = struct.Struct("=QQ4i4iH")  # data, grad, shape, strides, ndim of an ``array_t``


@functools.lru_cache(4096)  # most launches of a step share arrays with others
def _descriptor_access(
    descriptor: bytes, item_bytes: int, mode: int, pointer: int | None
) -> Access:
    data, _, *extents, ndim = _DESCRIPTOR.unpack_from(descriptor)
    address = data if pointer is None else pointer
    if not address:
        return Access(0, 0, mode)
    return strided_access(address, extents[:ndim], extents[4 : 4 + ndim], item_bytes, mode)


def indexed_accesses(array: Any, item_bytes: int, mode: int) -> list[Access]:
    """The accesses of an ``indexedarray_t``: the indices as reads, the data as a whole."""
    accesses = [array_access(array.data, item_bytes, mode)._replace(pitch=0, width=0)]
    for dim in range(array.data.ndim):
        pointer = as_address(array.indices[dim])
        if pointer:
            accesses.append(Access(pointer, pointer + 4 * array.shape[dim], READ))
    return accesses


def array_fields(struct_type: Any, instance: Any) -> list[Access] | None:
    """Everything a Warp struct's instance reaches as reads and writes, None if that is unknowable.

    A struct reaches its arrays and those of nested structs. Arrays of structs that hold arrays, and
    64-bit handles (a mesh, a BVH, a hash grid), lead to memory that cannot be listed.
    """
    import warp
    from warp._src.codegen import Struct
    from warp._src.types import is_array, type_size_in_bytes

    accesses: list[Access] = []
    for name, var in struct_type.vars.items():
        kind = var.type
        value = getattr(instance, name)
        if isinstance(kind, Struct):
            inner = array_fields(kind, value)
            if inner is None:
                return None
            accesses += inner
        elif is_array(kind):
            if not hasattr(value, "strides"):
                return None
            if isinstance(kind.dtype, Struct) and holds_arrays(kind.dtype):
                return None
            item_bytes = type_size_in_bytes(kind.dtype)
            accesses.append(array_access(value, item_bytes, READ_WRITE))
            if value.grad:
                accesses.append(array_access(value, item_bytes, READ_WRITE, value.grad))
        elif kind is warp.uint64:
            return None
    return accesses


def holds_arrays(struct_type: Any) -> bool:
    """Whether a Warp struct has a field that points to memory."""
    import warp
    from warp._src.codegen import Struct
    from warp._src.types import is_array

    kinds: Iterable[Any] = (var.type for var in struct_type.vars.values())
    return any(
        is_array(kind) or kind is warp.uint64 or (isinstance(kind, Struct) and holds_arrays(kind))
        for kind in kinds
    )


_libc = ctypes.CDLL(None)
_libc.malloc_usable_size.argtypes = [ctypes.c_void_p]
_libc.malloc_usable_size.restype = ctypes.c_size_t


def malloc_block(pointer: int, mode: int = WRITE) -> Access:
    """The whole heap block that starts at `pointer`."""
    return Access(pointer, pointer + _libc.malloc_usable_size(pointer), mode)


def merge(accesses: Sequence[Access]) -> tuple[Access, ...]:
    """Drops empty accesses and repetitions, joining modes of equal ranges."""
    modes: dict[tuple[int, int, int, int], int] = {}
    for access in accesses:
        if access.start < access.end:
            key = (access.start, access.end, access.pitch, access.width)
            modes[key] = modes.get(key, 0) | access.mode
    return tuple(Access(s, e, mode, p, w) for (s, e, p, w), mode in modes.items())
