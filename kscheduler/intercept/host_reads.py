"""Host accesses to tensor memory that PyTorch's dispatcher never shows.

While a `HostReads` is open, every entry point of `torch.Tensor` and `wp.array` through which the
host can see or change data without a dispatched op first calls `sink.host_read`, for the thread
that opened it; other threads pass straight through. An *export* (a NumPy view, a pointer, a DLPack
capsule, a storage) leaves the memory visible to the host afterwards. Wrapping without looking
(`wp.from_torch`, `wp.to_torch`, `torch.from_dlpack`) is neither.

Not seen, because no call is made: exports made before it was opened, `wp.array.ptr`, and reads
through a `torch.UntypedStorage` or NumPy array that the program held already. Reading
`Tensor.__dlpack_c_exchange_api__` is prevented instead, so that its users take `__dlpack__`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
import warp as wp
from torch import Tensor
from warp._src import dlpack as warp_dlpack

from kscheduler.access import READ, READ_WRITE, Access, strided_access
from kscheduler.intercept.patches import ABSENT, PatchSet
from kscheduler.intercept.torch_access import storage_access, tensor_access
from kscheduler.intercept.torch_ops import out_of_sight, unwatched_mode_stack

__all__ = ["HostReads", "HostSink", "unreported"]

# Reads that end with the call. The numeric ones also catch `torch.tensor([t, t])` and its like,
# which read 0-d tensors with the dispatch modes switched off.
_TENSOR_READS = (
    "tolist",
    "__reduce_ex__",
    "__deepcopy__",
    "item",
    "__float__",
    "__int__",
    "__index__",
    "__bool__",
    "__complex__",
)
_TENSOR_EXPORTS = (
    "numpy",
    "__array__",
    "data_ptr",
    "const_data_ptr",
    "mutable_data_ptr",
    "__dlpack__",
    "storage",
    "untyped_storage",
    "share_memory_",
)
# Composites that ask whether a dispatch mode is on, and then take another way to other last bits.
_MODE_SENSITIVE = ("cond", "eigvals", "eigvalsh", "matrix_norm", "matrix_rank", "norm", "svdvals")
_TENSOR_UPDATES = ("apply_", "map_", "map2_")
# Functions that look into tensor arguments in C++, before any op is dispatched.
_READERS_OF_ARGUMENTS = (
    "tensor_split",
    "lstm",
    "gru",
    "rnn_tanh",
    "rnn_relu",
    "_pad_packed_sequence",
)
# Modules that take a pointer only to make another array or tensor of it.
_WRAPPERS = frozenset(("warp._src.torch", "warp._src.dlpack", "torch.utils.dlpack"))


class HostSink(Protocol):
    """What is told of host accesses; a window implements it."""

    def fence(self, reason: str) -> None:
        """Finish everything."""

    def host_read(self, access: Access | None, what: str, exported: bool = False) -> None:
        """Wait until the host may look at `access` (None: at anything).

        Args:
            access: The bytes, `READ_WRITE` where the host may change them.
            what: The entry point, such as ``"Tensor.tolist"``.
            exported: The bytes stay visible to the host from now on.
        """


class _Current(threading.local):
    sink: HostSink | None = None


_current = _Current()


class HostReads:
    """Context manager that reports host accesses of the entering thread.

    Args:
        sink: Is told of each before it happens.
    """

    def __init__(self, sink: HostSink) -> None:
        self._sink = sink
        self._outer: HostSink | None = None

    def __enter__(self) -> HostReads:
        _patches.install()
        self._outer, _current.sink = _current.sink, self._sink
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _current.sink, self._outer = self._outer, None
        _patches.uninstall()


@contextmanager
def unreported() -> Iterator[None]:
    """Let this thread's host accesses pass without a report in this block.

    The replaced attributes are put back meanwhile, unless another thread needs them: Dynamo does
    not compile calls of replaced tensor methods.
    """
    before, _current.sink = _current.sink, None
    if before is not None:
        _patches.uninstall()
    try:
        yield
    finally:
        if before is not None:
            _patches.install()
        _current.sink = before


def _is_wrapping() -> bool:
    """Whether the entry point was called by a framework that only wraps the memory."""
    return sys._getframe(2).f_globals.get("__name__") in _WRAPPERS


def _tensor_bytes(tensor: Tensor, mode: int, whole_storage: bool) -> Access | None:
    try:
        return storage_access(tensor, mode) if whole_storage else tensor_access(tensor, mode)
    except (RuntimeError, NotImplementedError):  # no memory of its own: sparse, wrapper subclass
        return None


def _array_bytes(array: Any, mode: int) -> Access | None:
    if not array.ptr:
        return Access(0, 0, mode)
    item = wp.types.type_size_in_bytes(array.dtype)
    access = strided_access(array.ptr, array.shape, array.strides, item, mode)
    return Access(access.start, access.end, mode)


def _reading(
    name: str, bytes_of: Callable[[Any], Access | None], exported: bool, original: Any
) -> Any:
    """`original`, a method, behind a `host_read`; what it calls in turn is not reported again."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        sink = _current.sink
        if sink is None:
            return original(self, *args, **kwargs)
        if not exported or not _is_wrapping():
            sink.host_read(bytes_of(self), name, exported)
        _current.sink = None
        try:
            return original(self, *args, **kwargs)
        finally:
            _current.sink = sink

    return method


def _updating(name: str, original: Any) -> Any:
    """`original`, a tensor method that calls a function of the user's for each element."""

    @functools.wraps(original)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        sink = _current.sink
        if sink is not None:
            sink.host_read(_tensor_bytes(self, READ_WRITE, False), name, False)
            _read_arguments(sink, args, name)
        return original(self, *args, **kwargs)

    return method


def _exporting_property(
    name: str, bytes_of: Callable[[Any], Access | None], original: property
) -> property:
    def get(self: Any) -> Any:
        value = original.fget(self)  # type: ignore[misc]  # raises where there is none to give
        sink = _current.sink
        if sink is not None and not _is_wrapping():
            sink.host_read(bytes_of(self), name, True)
        return value

    return property(get, original.fset, original.fdel, original.__doc__)


def _data_property() -> property:
    """`Tensor.data`, whose setter gives a tensor other memory behind the dispatcher's back."""
    original: Any = torch._C.TensorBase.data

    def set_data(self: Tensor, value: Tensor) -> None:
        sink = _current.sink
        if sink is not None:
            sink.host_read(_tensor_bytes(self, READ_WRITE, True), "Tensor.data =", False)
        original.__set__(self, value)

    return property(original.__get__, set_data, original.__delete__, original.__doc__)


def _reading_arguments(name: str, original: Any) -> Any:
    """`original`, a function that looks into its tensor arguments."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        sink = _current.sink
        if sink is not None:
            _read_arguments(sink, (*args, *kwargs.values()), name)
        return original(*args, **kwargs)

    return function


def _read_arguments(sink: HostSink, values: Any, name: str, mode: int = READ) -> None:
    for value in values:
        if isinstance(value, Tensor):
            sink.host_read(_tensor_bytes(value, mode, False), name, False)


def _exporting_argument(name: str, original: Any) -> Any:
    """`original`, a function that makes a capsule of its first argument."""

    @functools.wraps(original)
    def function(source: Any, *args: Any, **kwargs: Any) -> Any:
        sink = _current.sink
        if sink is not None and not _is_wrapping():
            is_tensor = isinstance(source, Tensor)
            sink.host_read(
                _tensor_bytes(source, READ_WRITE, True)
                if is_tensor
                else _array_bytes(source, READ_WRITE),
                name,
                True,
            )
        return original(source, *args, **kwargs)

    return function


def _unwatched(name: str, original: Any) -> Any:
    """`original`, behind everything in flight and out of sight of any dispatch mode."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        sink = _current.sink
        if sink is None:
            return original(*args, **kwargs)
        sink.fence("mode_sensitive")
        with out_of_sight():
            return original(*args, **kwargs)

    return function


def _swapping(original: Any) -> Any:
    @functools.wraps(original)
    def swap(*tensors: Any) -> Any:
        sink = _current.sink
        if sink is not None:
            _read_arguments(sink, tensors, "swap_tensors", READ_WRITE)
        return original(*tensors)

    return swap


def _importing(name: str, original: Any) -> Any:
    """`original`, a function whose result may share memory that the host holds."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        tensor = original(*args, **kwargs)
        sink = _current.sink
        if sink is None or _is_wrapping():
            return tensor
        source = args[0] if args else next(iter(kwargs.values()), None)
        is_shared = name == "frombuffer" or isinstance(source, np.ndarray)
        if is_shared and isinstance(tensor, Tensor):
            sink.host_read(_tensor_bytes(tensor, READ_WRITE, True), f"torch.{name}", True)
        return tensor

    return function


def _repr(original: Any) -> Any:
    """`Tensor.__repr__`, which runs its ops with the dispatch modes off: on this tensor only."""
    reading = _reading(
        "Tensor.__repr__", lambda self: _tensor_bytes(self, READ, False), False, original
    )

    @functools.wraps(original)
    def method(self: Tensor, **kwargs: Any) -> str:
        if _current.sink is None:
            return original(self, **kwargs)
        with unwatched_mode_stack():
            return reading(self, **kwargs)

    return method


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    yield from _tensor_replacements()
    yield from _function_replacements()
    yield from _array_replacements()


def _tensor_replacements() -> Iterator[tuple[Any, str, Any]]:
    def view(self: Tensor) -> Access | None:
        return _tensor_bytes(self, READ, False)

    def storage(self: Tensor) -> Access | None:
        return _tensor_bytes(self, READ_WRITE, True)

    yield Tensor, "__repr__", _repr(Tensor.__repr__)
    for name in _TENSOR_READS:
        yield Tensor, name, _reading(f"Tensor.{name}", view, False, getattr(Tensor, name))
    for name in filter(partial(hasattr, Tensor), _TENSOR_EXPORTS):
        yield Tensor, name, _reading(f"Tensor.{name}", storage, True, getattr(Tensor, name))
    for name in _TENSOR_UPDATES:
        yield Tensor, name, _updating(f"Tensor.{name}", getattr(Tensor, name))
    name = "__cuda_array_interface__"
    yield Tensor, name, _exporting_property(f"Tensor.{name}", storage, vars(Tensor)[name])
    yield Tensor, "data", _data_property()
    yield Tensor, "__dlpack_c_exchange_api__", ABSENT
    yield Tensor, "tensor_split", _reading_arguments("Tensor.tensor_split", Tensor.tensor_split)


def _function_replacements() -> Iterator[tuple[Any, str, Any]]:
    for name in _READERS_OF_ARGUMENTS:
        for holder in (torch, torch._VF):
            if hasattr(holder, name):
                yield holder, name, _reading_arguments(name, getattr(holder, name))
    for holder, name in (
        (torch.utils.dlpack, "to_dlpack"),
        (torch, "to_dlpack"),
        (torch._C, "_to_dlpack"),
        (torch._C, "_to_dlpack_versioned"),
        (wp, "to_dlpack"),
        (warp_dlpack, "to_dlpack"),
    ):
        if hasattr(holder, name):
            yield holder, name, _exporting_argument(name, getattr(holder, name))
    core: Any = torch._C
    for name in _MODE_SENSITIVE:
        for holder, held in ((torch.linalg, name), (core._linalg, f"linalg_{name}")):
            if hasattr(holder, held):
                yield holder, held, _unwatched(f"torch.linalg.{name}", getattr(holder, held))
    for name in ("from_numpy", "frombuffer", "as_tensor", "asarray"):
        yield torch, name, _importing(name, getattr(torch, name))
    if hasattr(torch._C, "_swap_tensor_impl"):
        yield torch._C, "_swap_tensor_impl", _swapping(torch._C._swap_tensor_impl)


def _array_replacements() -> Iterator[tuple[Any, str, Any]]:
    def read(self: Any) -> Access | None:
        return _array_bytes(self, READ)

    def share(self: Any) -> Access | None:
        return _array_bytes(self, READ_WRITE)

    for name in ("list", "__str__"):
        yield wp.array, name, _reading(f"wp.array.{name}", read, False, getattr(wp.array, name))
    for name in ("numpy", "__dlpack__", "cptr"):
        yield wp.array, name, _reading(f"wp.array.{name}", share, True, getattr(wp.array, name))
    for name in ("__array_interface__", "__cuda_array_interface__"):
        original = vars(wp.array)[name]
        yield wp.array, name, _exporting_property(f"wp.array.{name}", share, original)


_patches = PatchSet(_replacements)
