"""`kernel`: declares what an opaque callable touches (ctypes, a raw kernel, shared numpy memory).

Inside a window a declared callable waits for just the tasks that it conflicts with, runs on the
calling thread while others go on, and keeps its return value and exceptions. In a recording it is
called again at its place in the graph. Outside of windows the decorator does nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np
import torch
import warp
from warp._src.codegen import Struct, StructInstance

from kscheduler.access import READ, READ_WRITE, WRITE, Access
from kscheduler.arguments import leaf_range
from kscheduler.errors import InvalidOption
from kscheduler.guards import is_scalar
from kscheduler.intercept.current import current_sink, entered
from kscheduler.intercept.host_memory import ndarray_access
from kscheduler.intercept.host_reads import unreported
from kscheduler.intercept.torch_access import tensor_access
from kscheduler.native import array_access, holds_arrays
from kscheduler.record import EVERYTHING, RecordSink

__all__ = ["kernel"]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(
    *misplaced: object, reads: Iterable[str] = (), writes: Iterable[str] = ()
) -> Callable[[F], F]:
    """Declares which array arguments a callable reads and writes.

    Args:
        *misplaced: Nothing; a decorator without brackets puts its function here.
        reads: Names of parameters whose arrays are read.
        writes: Names of parameters whose arrays are written. A name in both is read and written.
            An array passed for any other parameter counts as read and written. An object that
            is no array, list, dict, struct or number may lead to any memory.

    Returns:
        A decorator; the decorated callable is called as before.

    Raises:
        InvalidOption: A name is not a parameter of the callable, or no declaration is given.

    The declaration is trusted. `kscheduler.audit` finds writes that it leaves out.
    """
    if misplaced:
        raise InvalidOption(
            "write @ks.kernel(reads=(...), writes=(...)) with the names of the parameters whose "
            "arrays are read and written"
        )
    modes: dict[str, int] = {}
    for names, mode in ((reads, READ), (writes, WRITE)):
        if isinstance(names, str):
            raise InvalidOption(f"give names as a tuple: ({names!r},) instead of {names!r}")
        for name in names:
            modes[name] = modes.get(name, 0) | mode

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        unknown = sorted(set(modes) - set(signature.parameters))
        if unknown:
            raise InvalidOption(
                f"{function.__name__} has no parameter {', '.join(unknown)}; it has "
                f"{', '.join(signature.parameters) or 'none'}"
            )

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            sink = current_sink()
            if sink is None:
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            accesses = [
                access
                for name, value in bound.arguments.items()
                for access in _accesses(value, modes.get(name, READ_WRITE))
            ]
            arrays = [a for value in bound.arguments.values() for a in _arrays(value)]
            for name, value in bound.arguments.items():
                _refuse_strangers(sink, f"{function.__name__} gets {name}", value)
            return sink.opaque(
                function.__name__, functools.partial(_run, sink, function, args, kwargs),
                tuple(accesses), arrays,
            )  # fmt: skip

        call.__kscheduler_modes__ = dict(modes)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _refuse_strangers(sink: Any, what: str, value: Any) -> None:
    """Refuses to record what may be made anew in each call, without the recording seeing it."""
    if not isinstance(sink, RecordSink):
        return
    for leaf in _leaves(value):
        if not isinstance(leaf, (torch.Tensor, warp.array)):
            sink.refuse(
                f"{what}, which holds a {type(leaf).__name__}: a replay cannot tell whether it is "
                "a new one in each call; pass it tensors and Warp arrays, or use strategy='stream'"
            )


def _run(sink: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls the function with its own launches and reads unseen: the declaration covers them."""
    with ExitStack() as stack:
        stack.enter_context(entered(None))
        stack.enter_context(unreported())
        if sink.torch.suspend():
            stack.callback(sink.torch.resume)
        return function(*args, **kwargs)


def _arrays(value: Any) -> list[Any]:
    """The tensors and Warp arrays of an argument."""
    return [leaf for leaf in _leaves(value) if isinstance(leaf, (torch.Tensor, warp.array))]


def _leaves(value: Any) -> Iterator[Any]:
    """An argument taken apart into whatever has memory."""
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, StructInstance):
        if any(var.type is warp.uint64 for var in value._cls.vars.values()):
            yield value  # it may be the handle of a mesh
        yield from _leaves([getattr(value, name) for name in value._cls.vars])
    elif isinstance(value, warp.indexedarray):
        yield value.data
        yield from _leaves(list(value.indices))
    elif not _is_value(value):
        yield value


def _is_value(value: Any) -> bool:
    """Whether an object holds no memory that a task could touch: a number, a name, a type."""
    return (
        is_scalar(value)
        or isinstance(value, (np.generic, np.dtype, torch.dtype, torch.device, type))
        or hasattr(type(value), "_wp_scalar_type_")  # a vector or a matrix
    )


def _access(leaf: Any, mode: int) -> Access:
    if isinstance(leaf, torch.Tensor):
        return tensor_access(leaf, mode)
    if isinstance(leaf, np.ndarray):
        return ndarray_access(leaf, mode)
    if not isinstance(leaf, warp.array) or _leads_further(leaf.dtype):
        return EVERYTHING._replace(mode=mode)
    item_bytes = warp.types.type_size_in_bytes(leaf.dtype)
    return array_access(leaf.__ctype__(), item_bytes, mode)


def _leads_further(dtype: Any) -> bool:
    return isinstance(dtype, Struct) and holds_arrays(dtype)


def _accesses(value: Any, mode: int) -> list[Access]:
    found = [_access(leaf, mode) for leaf in _leaves(value)]
    return [access for access in found if access.start < access.end]


def overlaps_any(array: Any, ranges: Iterable[Access]) -> bool:
    """Whether an array lies in one of the ranges."""
    own = leaf_range(array)
    return any(own.start < other.end and other.start < own.end for other in ranges)
