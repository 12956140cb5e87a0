"""The window: a context manager and decorator that runs the program's tasks side by side.

A window changes timing only. It belongs to the thread that entered it; everything that was
submitted inside is finished when it is left, on every path; patches, modes and threads are then as
before.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from kscheduler.backends.streams import StreamSink
from kscheduler.errors import InvalidOption, WindowError
from kscheduler.intercept.compiled import CompiledCalls
from kscheduler.intercept.current import current_sink
from kscheduler.intercept.host_reads import HostReads
from kscheduler.intercept.warp_patches import WarpPatches
from kscheduler.record import RecordSink
from kscheduler.report import Report
from kscheduler.summary import empty_report, stream_report

__all__ = ["STRATEGIES", "window"]

STRATEGIES = ("serial", "stream", "graph", "compile", "auto")
_MAX_SIZE = 4096
_MAX_STREAMS = 63


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class window:
    """Runs the launches of PyTorch and Warp inside it concurrently where they are independent.

    Use it as a context manager around any code, or as a decorator of a function::

        with ks.window() as w:
            env.step(action)
        print(w.report)

        step = ks.window(strategy="graph")(env.step)

    Args:
        size: Most tasks in flight at once, 1 to 4096.
        streams: Most tasks that run at once; None for one per usable core.
        strategy: ``"serial"`` (program order), ``"stream"`` (a sliding window over the launches;
            any program), ``"graph"`` (record once, replay natively; decorator only),
            ``"compile"`` (`torch.compile`, not bit-equal; decorator only), ``"auto"`` (measures the
            bit-equal ones and keeps the fastest).

    Raises:
        InvalidOption: An option has a value that cannot be used.
        WindowError: The window is entered twice, or left by another thread.
    """

    def __init__(self, size: int = 128, streams: int | None = None, strategy: str = "stream"):
        if callable(size):
            raise InvalidOption("write kscheduler.window()(function): the options come first")
        if isinstance(size, str):
            raise InvalidOption(f"write kscheduler.window(strategy={size!r}): size comes first")
        _check_count("size", size, _MAX_SIZE)
        if streams is not None:
            _check_count("streams", streams, _MAX_STREAMS)
        if strategy not in STRATEGIES:
            raise InvalidOption(
                f"strategy={strategy!r} does not exist; choose one of {', '.join(STRATEGIES)}"
            )
        self.size = size
        self.streams = streams if streams is not None else min(usable_cores(), _MAX_STREAMS)
        self.strategy = strategy
        self._owner: int | None = None
        self._scope: _Scope | None = None
        self._report: Report | None = None

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Decorates `function`; its calls run under the strategy."""
        from kscheduler.strategies import Scheduled

        if not callable(function):
            raise InvalidOption(f"window(...) decorates functions, not {type(function).__name__}")
        return Scheduled(function, self.size, self.streams, self.strategy)

    def __enter__(self) -> window:
        if self._owner is not None:
            raise WindowError(
                "this window is open already; make another one with kscheduler.window() for a "
                "nested block or another thread"
            )
        if self.strategy in ("graph", "compile"):
            raise InvalidOption(
                f"strategy={self.strategy!r} has to call the code again, which a `with` block "
                f"cannot: use it as a decorator, step = kscheduler.window(strategy="
                f"{self.strategy!r})(step), or take strategy='stream'"
            )
        self._scope = open_scope(self.size, self.streams, self.strategy)
        self._owner = threading.get_ident()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._owner != threading.get_ident() or self._scope is None:
            raise WindowError(
                "this window was entered by another thread (or not at all); leave it where it was "
                "entered"
            )
        scope, self._scope, self._owner = self._scope, None, None
        try:
            scope.close(error)
        finally:
            self._report = scope.report()

    @property
    def report(self) -> Report:
        """What ran in the last use of this window. Raises WindowError before its end."""
        if self._report is None:
            raise WindowError("the report is there once the window is closed")
        return self._report


def _check_count(name: str, value: Any, limit: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise InvalidOption(f"{name}={value!r} must be a whole number from 1 to {limit}")


class _Scope:
    """One use of a window: serial, nested in another one, or with streams of its own."""

    def close(self, error: BaseException | None) -> None:
        """Finishes everything; `error` is what the user's code has raised."""

    def report(self) -> Report:
        """What happened."""
        raise WindowError("the report is there once the window is closed")


class _SerialScope(_Scope):
    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds = 0.0

    def close(self, error: BaseException | None) -> None:
        self._seconds = time.perf_counter() - self._start

    def report(self) -> Report:
        return empty_report("serial", 1, self._seconds)


class _NestedScope(_Scope):
    """A window inside another one shares its streams; leaving it waits for its own tasks only."""

    def __init__(self, outer: StreamSink) -> None:
        self._outer = outer
        self._first = outer.core.next_id
        self._start = time.perf_counter()
        self._fences = Counter(outer.fences)
        self._torch_ops = outer.torch_ops

    def close(self, error: BaseException | None) -> None:
        self._outer.fences["exception" if error is not None else "window_exit"] += 1
        self._outer.core.wait_since(self._first)
        _raise_failure(self._outer, error)

    def report(self) -> Report:
        seconds = time.perf_counter() - self._start
        report = stream_report(self._outer, seconds, first=self._first)
        report.fences = dict(Counter(self._outer.fences) - self._fences)
        report.tasks -= self._torch_ops
        return report


def _raise_failure(sink: StreamSink, error: BaseException | None) -> None:
    """Raises the error of a task that failed; an error of the user's own gets it as a note."""
    try:
        sink.finish_errors()
    except RuntimeError as failure:
        if error is None:
            raise
        error.add_note(f"kscheduler: a task in flight has failed, too: {failure}")


class _JoinedScope(_SerialScope):
    """A window inside a recording joins it: its tasks are part of the recorded graph."""

    def report(self) -> Report:
        report = empty_report("graph", 1, self._seconds)
        report.notes.append("this window was part of a recording; see the decorated function")
        return report


class _StreamScope(_Scope):
    def __init__(self, size: int, streams: int) -> None:
        self._start = time.perf_counter()
        self._seconds = 0.0
        self._stack = ExitStack()
        try:
            self._stack.enter_context(WarpPatches.installed())
            self._stack.enter_context(NoFork())
            self.sink = StreamSink(streams, size)
            self._stack.callback(self.sink.close)
            self._stack.enter_context(HostReads(self.sink))
            self._compiled = self._stack.enter_context(CompiledCalls(self.sink, self.sink.torch))
            self._stack.enter_context(self.sink.activate())
        except BaseException:
            self._stack.close()
            raise

    def close(self, error: BaseException | None) -> None:
        try:
            self.sink.fences["exception" if error is not None else "window_exit"] += 1
            self.sink.core.wait_for_all()
        finally:
            self._stack.close()
            self._seconds = time.perf_counter() - self._start
        _raise_failure(self.sink, error)

    def report(self) -> Report:
        report = stream_report(self.sink, self._seconds)
        for name, calls in self._compiled.calls.items():
            ran = self._compiled.compiled[name]
            report.notes.append(f"{name} was called {calls} times; compiled code ran in {ran}")
        return report


def open_scope(size: int, streams: int, strategy: str) -> _Scope:
    """Starts one use of a window with a strategy that works as a context manager."""
    outer = current_sink()
    if isinstance(outer, RecordSink):
        return _JoinedScope()
    if isinstance(outer, StreamSink):
        if strategy == "serial":
            outer.fence("program_order")
        return _NestedScope(outer)
    if strategy == "serial" or (strategy == "auto" and streams == 1):
        return _SerialScope()
    return _StreamScope(size, streams)


class NoFork:
    """Makes `os.fork` raise while a window is open: the child would have no worker threads."""

    _lock = threading.Lock()
    _users = 0
    _original: Callable[[], int] | None = None

    def __enter__(self) -> None:
        cls = NoFork
        with cls._lock:
            if cls._users == 0 and hasattr(os, "fork"):
                cls._original = os.fork
                os.fork = _refuse_fork
            cls._users += 1

    def __exit__(self, *exc: Any) -> None:
        cls = NoFork
        with cls._lock:
            cls._users -= 1
            if cls._users == 0 and cls._original is not None:
                os.fork = cls._original
                cls._original = None


def _refuse_fork() -> int:
    raise WindowError(
        "a process cannot fork while a kscheduler window is open, since worker threads do not "
        "exist in the child; fork before the window, or use the 'spawn' start method"
    )
