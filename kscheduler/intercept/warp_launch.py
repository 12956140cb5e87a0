"""Warp launches as native calls: code, packed arguments, and the bytes they touch.

`pack` turns what Warp hands to its own CPU invocation into a `NativeCall`. `prepared_entry` writes
down what the native launcher needs to do the same for later launches of the kernel.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import warp
from warp._src import codegen, context
from warp._src import types as warp_types

from kscheduler import _core
from kscheduler.access import READ_WRITE, Access
from kscheduler.intercept.warp_access import KernelAccess, kernel_access
from kscheduler.native import (
    BLOCK_ERROR,
    NativeCall,
    array_access,
    array_fields,
    indexed_accesses,
    merge,
    structure_bytes,
)

__all__ = ["MAX_LANES", "argument_spans", "pack", "prepared_entry"]

MAX_LANES = 64
_ARGS_OFFSET = 32  # launch bounds take at most 32 bytes

_copies: weakref.WeakKeyDictionary[Any, dict[int, _LoadedCopy]] = weakref.WeakKeyDictionary()
_handles = itertools.count()


class _LoadedCopy:
    """A further copy of a module's machine code; unloaded when nobody holds it."""

    def __init__(self, binary_path: str) -> None:
        self.handle = f"kscheduler_copy_{next(_handles)}".encode()
        llvm = context.runtime.llvm
        legacy_linker = warp.config.legacy_cpu_linker
        if llvm.wp_load_obj(binary_path.encode(), self.handle, legacy_linker):
            raise RuntimeError(f"Warp could not load a second copy of {binary_path}")
        weakref.finalize(self, llvm.wp_unload_obj, self.handle)

    def lookup(self, symbol: str) -> int:
        return int(context.runtime.llvm.wp_lookup(self.handle, symbol.encode()))


def find_module_exec(kernel: Any, hooks: Any) -> Any:
    """The loaded module whose code `hooks` points to, or None."""
    for module_exec in kernel.module.execs.values():
        if any(known is hooks for known in module_exec.kernel_hooks.values()):
            return module_exec
    return None


def lane_code(kernel: Any, module_exec: Any, adjoint: bool, lanes: int) -> _core.LaneCode:
    """One copy of a tile module's code per lane: its tiles live in a static pointer.

    Lane 0 is the original. Copies are loaded once per module and lane (0.3 ms each).
    """
    suffix = "_cpu_backward" if adjoint else "_cpu_forward"
    symbol = module_exec.get_kernel_mangled_name(kernel) + suffix
    hooks = module_exec.get_kernel_hooks(kernel)
    original = code_address(hooks.backward if adjoint else hooks.forward)
    copies = _copies.setdefault(module_exec, {})
    functions = [original]
    for lane in range(1, lanes):
        if lane not in copies:
            copies[lane] = _LoadedCopy(module_exec.binary_path)
        functions.append(copies[lane].lookup(symbol))
    return _core.LaneCode(functions)


def code_address(function: Any) -> int:
    """The address behind a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def pack(
    kernel: Any, hooks: Any, params: Sequence[Any], adjoint: bool, lanes: int, blocks: bool = False
) -> NativeCall:
    """The native call of a launch whose arguments Warp has already converted.

    Args:
        kernel: The Warp kernel (a concrete overload).
        hooks: Its compiled entry points.
        params: Launch bounds, then the forward arguments, then (adjoint) their adjoints.
        adjoint: Whether this is the backward kernel.
        lanes: How many lanes may run it.
        blocks: Whether it is a cooperative launch (``block_dim > 1``).

    Returns:
        The call; its `accesses` are None where the kernel reaches memory that cannot be listed.
    """
    module_exec = find_module_exec(kernel, hooks)
    access = kernel_access(kernel, module_exec)
    args, adjoints = context._build_cpu_args_structs(kernel, hooks, params, adjoint)
    blob = structure_bytes(params[0]).ljust(_ARGS_OFFSET, b"\0") + structure_bytes(args)
    words: tuple[int, ...] = (0, _ARGS_OFFSET)
    blob_args = 0b11
    if adjoint:
        offset = (len(blob) + 15) // 16 * 16
        blob = blob.ljust(offset, b"\0") + structure_bytes(adjoints)
        words, blob_args = (0, _ARGS_OFFSET, offset), 0b111
    needs_copies = access.uses_tiles and lanes > 1
    return NativeCall(
        name=kernel.key,
        kind="warp",
        function=code_address(hooks.backward if adjoint else hooks.forward),
        args=words,
        blob=blob,
        blob_args=blob_args,
        check=BLOCK_ERROR if blocks else 0,
        lanes=lane_code(kernel, module_exec, adjoint, lanes) if needs_copies else None,
        accesses=launch_accesses(kernel, access, params, adjoint),
        keep=(kernel, module_exec),
    )


def launch_accesses(
    kernel: Any, access: KernelAccess, params: Sequence[Any], adjoint: bool
) -> tuple[Access, ...] | None:
    """What a launch touches; None if it reaches memory that cannot be listed."""
    if access.hidden:
        return None
    found: list[Access] = []
    count = len(kernel.adj.args)
    for index, value in enumerate(params[1:]):
        position = index % count
        mode = READ_WRITE if adjoint else access.modes[position]
        reached = _argument_accesses(
            kernel.adj.args[position].type, value, mode, access.opaque[position], adjoint
        )
        if reached is None:
            return None
        found += reached
    return merge(found)


def argument_spans(kernel: Any, params: Sequence[Any]) -> list[Access]:
    """The memory of all array arguments of a launch, whatever the kernel is known to touch."""
    found: list[Access] = []
    count = len(kernel.adj.args)
    for index, value in enumerate(params[1:]):
        kind = kernel.adj.args[index % count].type
        found += _argument_accesses(kind, value, READ_WRITE, False, True) or []
    return [access for access in found if access.start < access.end]


def _argument_accesses(
    kind: Any, value: Any, mode: int, is_opaque: bool, adjoint: bool
) -> list[Access] | None:
    if isinstance(kind, codegen.Struct):
        return None if is_opaque else array_fields(kind, value)
    if warp_types.is_array(kind):
        item_bytes = warp_types.type_size_in_bytes(kind.dtype)
        if isinstance(kind.dtype, codegen.Struct) and is_opaque:
            return None
        if isinstance(value, warp_types.indexedarray_t):
            return indexed_accesses(value, item_bytes, READ_WRITE)
        if not isinstance(value, warp_types.array_t):
            return None
        if is_opaque:
            return None
        found = [array_access(value, item_bytes, mode)] if mode else []
        if adjoint and value.grad:
            found.append(array_access(value, item_bytes, READ_WRITE, value.grad))
        return found
    return None if is_opaque else []


_SCALARS = {
    ctypes.c_float: 1,
    ctypes.c_double: 2,
    ctypes.c_int8: 3,
    ctypes.c_uint8: 3,
    ctypes.c_int16: 3,
    ctypes.c_uint16: 3,
    ctypes.c_int32: 3,
    ctypes.c_uint32: 3,
    ctypes.c_int64: 3,
    ctypes.c_uint64: 3,
    ctypes.c_bool: 4,
}


def prepared_entry(
    kernel: Any, hooks: Any, params: Sequence[Any], label: int, lanes: int
) -> dict[str, Any] | None:
    """What the native launcher needs for later launches, None if the kernel is not an easy one."""
    module_exec = find_module_exec(kernel, hooks)
    hasher = kernel.module.hashers.get(1)
    if hasher is None or module_exec is None or module_exec.block_dim != 1:
        return None
    access = kernel_access(kernel, module_exec)
    cached = kernel._invoke_cache.get((tuple(type(p) for p in params[1:]), False))
    if cached is None or access.hidden or any(access.opaque):
        return None
    layout, fields = cached
    args = []
    for arg, mode, (name, ctype) in zip(kernel.adj.args, access.modes, fields, strict=True):
        described = _prepared_arg(arg.type, ctype, mode, getattr(layout, name).offset)
        if described is None:
            return None
        args.append(described)
    needs_copies = access.uses_tiles and lanes > 1
    return {
        "hasher": hasher,
        "keep": (module_exec,),
        "function": code_address(hooks.forward),
        "lanes": lane_code(kernel, module_exec, False, lanes) if needs_copies else None,
        "kernel_dim": kernel.adj.kernel_dim,
        "max_threads": kernel.adj.tid_extent_limit_candidate,
        "args_bytes": ctypes.sizeof(layout),
        "label": label,
        "args": args,
    }


def _prepared_arg(kind: Any, ctype: Any, mode: int, offset: int) -> tuple[Any, ...] | None:
    """(ArgKind, offset, bytes, mode, ndim, type) of one argument."""
    if warp_types.matches_array_class(kind, warp.array) and ctype is warp_types.array_t:
        item_bytes = warp_types.type_size_in_bytes(kind.dtype)
        return (0, offset, item_bytes, mode, kind.ndim, kind.dtype)
    if isinstance(kind, codegen.Struct) or warp_types.is_array(kind):
        return None
    if isinstance(kind, type) and issubclass(kind, ctypes.Array):
        return (5, offset, ctypes.sizeof(kind), 0, 0, kind)
    is_half = kind in (warp_types.float16, warp_types.bfloat16)
    if ctype in _SCALARS and not is_half:
        return (_SCALARS[ctype], offset, ctypes.sizeof(ctype), 0, 0, None)
    return None
