"""`kernel`: declares what an opaque callable touches (ctypes, a raw kernel, shared numpy memory).

Inside a window a declared callable waits for just the tasks that it conflicts with, runs on the
calling thread while others go on, and keeps its return value and exceptions. In a recording it is
called again at its place in the graph. Outside of windows the decorator does nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
import warp

from kscheduler.access import READ, READ_WRITE, WRITE, Access
from kscheduler.arguments import leaf_range
from kscheduler.errors import InvalidOption
from kscheduler.intercept.current import current_sink, entered
from kscheduler.intercept.host_reads import unreported
from kscheduler.intercept.torch_access import tensor_access
from kscheduler.native import array_access

__all__ = ["kernel"]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(*, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> Callable[[F], F]:
    """Declares which array arguments a callable reads and writes.

    Args:
        reads: Names of parameters whose arrays are read.
        writes: Names of parameters whose arrays are written. A name in both is read and written.
            An array passed for any other parameter counts as read and written.

    Returns:
        A decorator; the decorated callable is called as before.

    Raises:
        InvalidOption: A name is not a parameter of the callable.

    The declaration is trusted. `kscheduler.audit` finds writes that it leaves out.
    """
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
            return sink.opaque(
                function.__name__, functools.partial(_run, sink, function, args, kwargs),
                tuple(accesses), arrays,
            )  # fmt: skip

        call.__kscheduler_modes__ = dict(modes)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _run(sink: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls the function with its own launches and reads unseen: the declaration covers them."""
    with ExitStack() as stack:
        stack.enter_context(entered(None))
        stack.enter_context(unreported())
        if sink.torch.suspend():
            stack.callback(sink.torch.resume)
        return function(*args, **kwargs)


def _arrays(value: Any) -> list[Any]:
    if isinstance(value, (torch.Tensor, warp.array)):
        return [value]
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in _arrays(item)]
    if isinstance(value, dict):
        return [array for item in value.values() for array in _arrays(item)]
    return []


def _accesses(value: Any, mode: int) -> list[Access]:
    found = []
    for array in _arrays(value):
        if isinstance(array, torch.Tensor):
            found.append(tensor_access(array, mode))
        else:
            item_bytes = warp.types.type_size_in_bytes(array.dtype)
            found.append(array_access(array.__ctype__(), item_bytes, mode))
    return [access for access in found if access.start < access.end]


def overlaps_any(array: Any, ranges: Iterable[Access]) -> bool:
    """Whether an array lies in one of the ranges."""
    own = leaf_range(array)
    return any(own.start < other.end and other.start < own.end for other in ranges)
