"""Warp's launches and memory functions, sent to the current thread's sink.

Patched while at least one window is open and put back on every exit path: the two CPU invocation
functions that every launch ends in, the native functions of ``runtime.core`` that everything else
ends in, and the loops and branches that read their condition on the host. `wp.launch` itself is
replaced by its native twin only to save time: whoever holds the original gets the same order.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import warp
import warp.utils
from warp._src import context, utils
from warp._src.codegen import StructInstance

from kscheduler import _core
from kscheduler.access import WRITE, Access
from kscheduler.errors import UnsupportedVersion
from kscheduler.intercept import warp_memory
from kscheduler.intercept.current import current_sink
from kscheduler.intercept.host_memory import is_bare
from kscheduler.intercept.warp_launch import pack
from kscheduler.native import as_address

__all__ = ["WarpPatches", "condition_access", "condition_holds", "original", "warp_core"]


class WarpPatches:
    """Reference-counted: the first window patches, the last one puts everything back."""

    _lock = threading.Lock()
    _users = 0
    _restore: list[Callable[[], None]] = []

    @classmethod
    def install(cls) -> None:
        """Patches Warp, or counts one more user."""
        warp.init()
        with cls._lock:
            if cls._users == 0:
                try:
                    cls._patch_all()
                except BaseException:
                    cls._put_back()
                    raise
            cls._users += 1

    @classmethod
    def uninstall(cls) -> None:
        """Counts one user less; the last one puts everything back."""
        with cls._lock:
            cls._users -= 1
            if cls._users == 0:
                cls._put_back()

    @classmethod
    @contextmanager
    def installed(cls) -> Iterator[None]:
        """Patches Warp within the block."""
        cls.install()
        try:
            yield
        finally:
            cls.uninstall()

    @classmethod
    def _put_back(cls) -> None:
        while cls._restore:
            cls._restore.pop()()

    @classmethod
    def _patch_all(cls) -> None:
        cpu = context.runtime.cpu_device
        core = context.runtime.core
        proxy = _CoreProxy(core)
        _core.set_block_error_function(_address(core.wp_take_cpu_block_error))
        _core.set_original_launch(_launch_with_owners)
        cls._set(context, "invoke", _invoke)
        cls._set(context, "invoke_cpu_blocks", _invoke_cpu_blocks)
        cls._set(context.runtime, "core", proxy)
        cls._set(cpu, "memset", proxy.wp_memset_host)
        cls._set(cpu, "memtile", proxy.wp_memtile_host)
        cls._set(context.Launch, "launch", _recorded_launch)
        cls._set(warp.array, "fill_", _owned(original.fill, first_only=True))
        cls._set(warp.array, "zero_", _owned(original.zero, first_only=True))
        for name in _ON_WHOLE_ARRAYS:
            for module in (warp.utils, utils):
                cls._set(module, name, _owned(getattr(original, name)))
        for module in (warp, context):
            cls._set(module, "launch", _core.launch)
            cls._set(module, "copy", _copy)
            cls._set(module, "capture_while", capture_while)
            cls._set(module, "capture_if", capture_if)
            for name in _SYNCHRONIZING:
                cls._set(module, name, _fenced(getattr(original, name), "stream_sync"))

    @classmethod
    def _set(cls, target: Any, name: str, value: Any) -> None:
        had_own = name in vars(target)
        before = getattr(target, name)

        def restore() -> None:
            if had_own:
                setattr(target, name, before)
            else:
                delattr(target, name)

        setattr(target, name, value)
        cls._restore.append(restore)


_SYNCHRONIZING = (
    "synchronize",
    "synchronize_device",
    "synchronize_stream",
    "synchronize_event",
    "capture_begin",
    "capture_end",
    "capture_launch",
    "load_module",
)


_ON_WHOLE_ARRAYS = (
    "array_scan",
    "radix_sort_pairs",
    "segmented_sort_pairs",
    "runlength_encode",
    "array_sum",
    "array_inner",
)


class _Originals:
    """Warp's own functions, as they were when this module was imported."""

    def __init__(self) -> None:
        self.launch = context.launch
        self.invoke = context.invoke
        self.invoke_cpu_blocks = context.invoke_cpu_blocks
        self.recorded_launch = context.Launch.launch
        self.fill = warp.array.fill_
        self.zero = warp.array.zero_
        self.copy = context.copy
        self.capture_while = context.capture_while
        self.capture_if = context.capture_if
        for name in _SYNCHRONIZING:
            setattr(self, name, getattr(context, name))
        for name in _ON_WHOLE_ARRAYS:
            setattr(self, name, getattr(utils, name))


original = _Originals()


def warp_core() -> Any:
    """Warp's own native library, also while it is patched."""
    warp.init()
    core = context.runtime.core
    return core.library if isinstance(core, _CoreProxy) else core


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# --- launches ------------------------------------------------------------------------------------


def _launch_with_owners(*args: Any, **kwargs: Any) -> Any:
    """`wp.launch`; remembers the objects passed, since Warp's invocation sees pointers only."""
    sink = current_sink()
    if sink is None:
        return original.launch(*args, **kwargs)
    before = sink.owners
    sink.owners = _flat(args) + _flat(kwargs.values())
    try:
        return original.launch(*args, **kwargs)
    finally:
        sink.owners = before


def _flat(values: Iterable[Any]) -> tuple[Any, ...]:
    """The values, those in lists among them, and the arrays in fields of structs.

    The caller may change a list or a field while the launch is in flight.
    """
    found: list[Any] = []
    for value in values:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            found.append(item)
            if isinstance(item, StructInstance):
                found += _flat(vars(item).values())
    return tuple(found)


def _owned(function: Callable[..., Any], first_only: bool = False) -> Callable[..., Any]:
    def owned(*args: Any, **kwargs: Any) -> Any:
        sink = current_sink()
        if sink is None:
            return function(*args, **kwargs)
        before = sink.owners
        sink.owners = args[:1] if first_only else _flat(args) + _flat(kwargs.values())
        try:
            return function(*args, **kwargs)
        finally:
            sink.owners = before

    owned.__wrapped__ = function  # type: ignore[attr-defined]
    return owned


def _recorded_launch(launch: Any, *args: Any, **kwargs: Any) -> Any:
    """`wp.Launch.launch`; the program may exchange its arrays while this one is in flight."""
    sink = current_sink()
    if sink is None:
        return original.recorded_launch(launch, *args, **kwargs)
    before = sink.owners
    sink.owners = _launch_owners(launch)
    try:
        return original.recorded_launch(launch, *args, **kwargs)
    finally:
        sink.owners = before


def _launch_owners(launch: Any) -> tuple[Any, ...] | None:
    """What owns the memory of a recorded launch now; None where a bare descriptor was set."""
    values = [launch.fwd_args, launch.adj_args] if launch.adjoint else [launch.fwd_args]
    if any(arguments is None for arguments in values):
        return None
    if any(isinstance(value, ctypes.Structure) for arguments in values for value in arguments):
        return None
    return (launch, *(owner for arguments in values for owner in _flat(arguments)))


def _copy(*args: Any, **kwargs: Any) -> Any:
    """`wp.copy`; ``wp.array(data)`` ends here too, with a source that dies at once."""
    sink = current_sink()
    if sink is None:
        return original.copy(*args, **kwargs)
    arrays = [*args[:2], *(kwargs[name] for name in ("dest", "src") if name in kwargs)]
    before = sink.owners
    sink.owners = None if any(map(is_bare, arrays)) else _flat(arrays)
    try:
        return original.copy(*args, **kwargs)
    finally:
        sink.owners = before


def _invoke(kernel: Any, hooks: Any, params: Any, adjoint: bool) -> None:
    sink = current_sink()
    if sink is None:
        original.invoke(kernel, hooks, params, adjoint)
    else:
        sink.launch(kernel, hooks, params, adjoint)  # type: ignore[attr-defined]


def _invoke_cpu_blocks(kernel: Any, hooks: Any, params: Any, adjoint: bool) -> None:
    sink = current_sink()
    if sink is None:
        original.invoke_cpu_blocks(kernel, hooks, params, adjoint)
        return
    # Its errors are recoverable and belong to this line of the program.
    sink.fence("cpu_blocks")
    sink.native(pack(kernel, hooks, params, adjoint, lanes=1, blocks=True))
    sink.finish_errors(kernel.key)  # type: ignore[attr-defined]


# --- memory functions ----------------------------------------------------------------------------


class _CoreProxy:
    """``runtime.core`` with its memory functions sent to the sink.

    Attributes are made on first use and then found without a call. A function that is neither
    listed nor harmless becomes a fence.
    """

    def __init__(self, library: Any) -> None:
        self.library = library

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)
        wrapped = self._wrap(name, function)
        setattr(self, name, wrapped)
        return wrapped

    def _wrap(self, name: str, function: Any) -> Any:
        if name in ("wp_alloc_host", "wp_alloc_pinned"):
            return _alloc(function)
        if name.startswith("_") or not callable(function) or warp_memory.is_harmless(name):
            return function
        if name in ("wp_free_host", "wp_free_pinned"):
            return _free(function)
        if name == "wp_memtile_host":
            return _memory(function, lambda code, args: warp_memory.tile_call(code, args))
        if name == "wp_array_copy_host":
            return _memory(function, warp_memory.copy_array, result=True)
        if name == "wp_array_fill_host":
            return _memory(function, warp_memory.fill_array)
        if name in warp_memory.MEMORY_FUNCTIONS:
            returns = function.restype is ctypes.c_bool
            return _memory(
                function, lambda code, args: warp_memory.plain_call(name, code, args), returns
            )
        return _fenced(function, "mesh_or_bvh" if _is_handle(name) else "unlisted_core_call")


def _is_handle(name: str) -> bool:
    return name.startswith(("wp_mesh_", "wp_bvh_", "wp_hash_grid_", "wp_volume_", "wp_texture_"))


def _memory(
    function: Any, describe: Callable[[int, Any], Any], result: bool | None = None
) -> Callable[..., Any]:
    code = _address(function)

    def call(*args: Any) -> Any:
        sink = current_sink()
        if sink is None:
            return function(*args)
        task = describe(code, args)
        if task is None:
            sink.fence("unknown_access")
            return function(*args)
        sink.native(task)
        return True if result else None

    return call


def _alloc(function: Any) -> Callable[..., Any]:
    def allocate(size: int, *rest: Any) -> Any:
        pointer = function(size, *rest)
        sink = current_sink()
        if sink is not None and pointer:
            sink.allocated(as_address(pointer), size)
        return pointer

    return allocate


def _free(function: Any) -> Callable[..., Any]:
    def free(pointer: Any) -> None:
        sink = current_sink()
        if sink is None or not sink.free(as_address(pointer)):
            function(pointer)

    return free


def _fenced(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    def fenced(*args: Any, **kwargs: Any) -> Any:
        sink = current_sink()
        if sink is not None:
            sink.fence(reason)
        return function(*args, **kwargs)

    fenced.__wrapped__ = function  # type: ignore[attr-defined]
    return fenced


# --- loops and branches --------------------------------------------------------------------------


def _is_plain_condition(condition: Any) -> bool:
    return (
        isinstance(condition, warp.array)
        and condition.dtype is warp.int32
        and condition.device.is_cpu
        and context._get_apic_capture_for_device(condition.device) is None
    )


def capture_while(condition: Any, while_body: Any, stream: Any = None, **kwargs: Any) -> None:
    """`wp.capture_while` whose condition is read behind the tasks that write it."""
    sink = current_sink()
    if sink is None:
        original.capture_while(condition, while_body, stream, **kwargs)
    elif _is_plain_condition(condition) and callable(while_body):
        sink.loop(condition, while_body, kwargs)
    else:
        sink.fence("loop_condition")
        original.capture_while(condition, while_body, stream, **kwargs)


def capture_if(
    condition: Any, on_true: Any = None, on_false: Any = None, stream: Any = None, **kwargs: Any
) -> None:
    """`wp.capture_if` whose condition is read behind the tasks that write it."""
    sink = current_sink()
    is_plain = _is_plain_condition(condition) and not any(
        isinstance(side, context.Graph) for side in (on_true, on_false)
    )
    if sink is None:
        original.capture_if(condition, on_true, on_false, stream, **kwargs)
    elif is_plain:
        sink.branch(condition, on_true, on_false, kwargs)
    else:
        sink.fence("loop_condition")
        original.capture_if(condition, on_true, on_false, stream, **kwargs)


def condition_access(condition: Any) -> Access:
    """The four bytes that a loop or branch tests."""
    return Access(condition.ptr, condition.ptr + 4, WRITE)


def condition_holds(condition: Any) -> bool:
    """The value of a loop's condition, read from memory."""
    return bool(ctypes.c_int32.from_address(condition.ptr).value)


def check_ctypes_layout() -> None:
    """Raises UnsupportedVersion where ctypes keeps its bytes somewhere else."""
    probe = warp._src.types.array_t()
    if not _core.has_ctypes_layout(probe, ctypes.addressof(probe)):
        raise UnsupportedVersion(
            "this Python keeps ctypes structures in an unknown layout; use CPython 3.11 to 3.13"
        )
