"""Which sink the current thread's launches go to.

A window belongs to the thread that entered it: other threads' launches are neither captured nor
delayed. Patched functions ask here first, and go their original way when there is no sink.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kscheduler import _core
from kscheduler.access import Access
from kscheduler.native import NativeCall

__all__ = ["Sink", "current_sink", "entered"]


class Sink(Protocol):
    """What a strategy does with the program's tasks."""

    owners: tuple[Any, ...] | None  # the objects that own the memory of the call being made

    def native(self, call: NativeCall) -> None:
        """Takes a call; it has run, or will run in an order that nobody can tell apart."""

    def allocated(self, pointer: int, size: int) -> None:
        """The program has got a block of so many bytes."""

    def free(self, pointer: int) -> bool:
        """Takes over a free. False: nobody uses the block, free it now."""

    def fence(self, reason: str) -> None:
        """Finishes everything; counted under `reason`."""

    def host_read(self, access: Access | None, what: str, exported: bool = False) -> None:
        """The host is about to look at these bytes (None: at any)."""

    def loop(self, condition: Any, body: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        """`wp.capture_while`."""

    def branch(
        self,
        condition: Any,
        on_true: Callable[..., Any] | None,
        on_false: Callable[..., Any] | None,
        kwargs: dict[str, Any],
    ) -> None:
        """`wp.capture_if`."""

    def opaque(
        self,
        name: str,
        run: Callable[[], Any],
        accesses: tuple[Access, ...],
        arrays: list[Any],
    ) -> Any:
        """Runs a declared callable and returns its result; `arrays` are its array arguments."""

    def torch_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a torch op and returns its result."""


class _Current(threading.local):
    sink: Sink | None = None


_current = _Current()


def current_sink() -> Sink | None:
    """The sink of this thread's innermost window, or None."""
    return _current.sink


@contextmanager
def entered(sink: Sink | None) -> Iterator[None]:
    """Sends this thread's launches to `sink` (None: to nobody) within the block."""
    before = _current.sink
    _use(sink)
    try:
        yield
    finally:
        _use(before)


def _use(sink: Sink | None) -> None:
    _current.sink = sink
    launcher, streams = getattr(sink, "native_way", (None, None))
    _core.activate_launcher(launcher, streams)
