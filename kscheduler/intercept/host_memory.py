"""Arrays whose memory the host reaches without a call that anybody could see.

NumPy's memory, wrapped without a copy (`torch.from_numpy`, ``wp.array(..., copy=False)``), and
memory shared with other processes belong to the host from the start. Guarantee: such an array is
found wherever it is passed; one with memory of its own is looked at once. So is an object that is
passed as it is and that Warp asks for its memory (`numpy.ndarray`). Not seen: views that
were taken of ordinary memory before (``t.numpy()`` before the window).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import warp

from kscheduler.access import READ_WRITE, Access, strided_access
from kscheduler.intercept import warp_blocks
from kscheduler.intercept.torch_access import storage_access

__all__ = [
    "PRIVATE_MARK",
    "borrowed_memory",
    "host_memory",
    "is_bare",
    "may_vanish",
    "ndarray_access",
]

PRIVATE_MARK = "_kscheduler_is_private"  # the native launcher looks for it, too

_END = 2**63  # of the addresses that a program can have
_untyped_storage = torch._C.TensorBase.untyped_storage


def host_memory(owner: Any) -> Access | None:
    """The bytes of an object that the host can reach unseen; None if there are none.

    Args:
        owner: Anything passed to a launch: a Warp array or descriptor, a tensor, a number.
    """
    if isinstance(owner, warp.array):
        return _array_memory(owner)
    if isinstance(owner, torch.Tensor):
        return _tensor_memory(owner)
    source = getattr(owner, "_ref", None)  # an array descriptor made by warp.from_torch
    return _tensor_memory(source) if isinstance(source, torch.Tensor) else None


def borrowed_memory(owner: Any) -> Access | None:
    """The bytes of an object of the host that stands for an array, as `numpy.ndarray` does.

    Args:
        owner: Anything passed to a launch.

    Returns:
        None for tensors, Warp's arrays and values; all memory where the object makes its array
        when it is asked.
    """
    if isinstance(owner, (torch.Tensor, warp.array, np.generic)):
        return None
    if isinstance(owner, np.ndarray):
        return ndarray_access(owner, READ_WRITE)
    is_array = hasattr(owner, "__array_interface__") or hasattr(owner, "__array__")
    return Access(0, _END, READ_WRITE) if is_array and not isinstance(owner, type) else None


def ndarray_access(array: np.ndarray, mode: int) -> Access:
    """The bytes of a NumPy array; all memory for an array of Python objects."""
    if array.dtype.hasobject:
        return Access(0, _END, mode)
    return strided_access(array.ctypes.data, array.shape, array.strides, array.itemsize, mode)


def is_bare(array: Any) -> bool:
    """Whether a Warp array was made from a pointer alone, so that nobody keeps its memory."""
    return isinstance(array, warp.array) and _has_no_owner(vars(array), array.ptr)


def may_vanish(owner: Any) -> bool:
    """Whether the memory of an array may be freed unseen while a task that got it is in flight.

    So it is for an array made from a bare pointer, or a view of one, unless Warp allocated the
    memory: Warp's frees are ordered behind the tasks that use it.
    """
    if not isinstance(owner, warp.array):
        return False
    root = vars(owner)
    while root.get("deleter") is None and isinstance(root.get("_ref"), warp.array):
        root = vars(root["_ref"])
    if root.get(PRIVATE_MARK):
        return False
    return _has_no_owner(root, owner.ptr) and not warp_blocks.holds(owner.ptr)


def _has_no_owner(attributes: dict[str, Any], pointer: int | None) -> bool:
    return (
        bool(pointer)
        and attributes.get("deleter") is None
        and attributes.get("_ref") is None
        and attributes.get("_tensor") is None
    )


def _array_memory(array: Any) -> Access | None:
    attributes = vars(array)
    root = attributes
    while root.get("deleter") is None and isinstance(root.get("_ref"), warp.array):
        root = vars(root["_ref"])
    if root.get("deleter") is not None or root.get(PRIVATE_MARK):
        return None
    tensor, source = root.get("_tensor"), root.get("_ref")
    found = None
    if isinstance(tensor, torch.Tensor):
        found = _tensor_memory(tensor)
    elif source is not None and array.ptr and array.device.is_cpu:
        item_bytes = warp.types.type_size_in_bytes(array.dtype)
        found = strided_access(array.ptr, array.shape, array.strides, item_bytes, READ_WRITE)
    if found is None and not (_has_no_owner(root, array.ptr) and not warp_blocks.holds(array.ptr)):
        root[PRIVATE_MARK] = True
    return found


def _tensor_memory(tensor: torch.Tensor) -> Access | None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    try:
        storage = _untyped_storage(tensor)
    except (RuntimeError, NotImplementedError):  # a wrapper without memory of its own
        return None
    # PyTorch can grow what it has allocated by itself, and only that.
    if storage.resizable() and not storage.is_shared():
        return None
    return storage_access(tensor, READ_WRITE)
