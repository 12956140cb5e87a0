"""What a decorated function does on each call, by strategy."""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

from kscheduler.graph_call import GraphCall
from kscheduler.report import Report
from kscheduler.summary import empty_report
from kscheduler.trace import TraceEvent
from kscheduler.window import open_scope

__all__ = ["Scheduled"]

_TRIALS = 3  # measured calls of each candidate of "auto"


class Strategy(Protocol):
    """One way to run a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""

    def report(self) -> Report:
        """What the last call did."""


class SerialCall:
    """Program order: the function as it is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._seconds = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return self._function(*args, **kwargs)
        finally:
            self._seconds = time.perf_counter() - start

    def report(self) -> Report:
        """The time of the last call; nothing is intercepted, so nothing else is known."""
        return empty_report("serial", 1, self._seconds)


class StreamCall:
    """A sliding window around each call."""

    def __init__(self, function: Callable[..., Any], size: int, streams: int) -> None:
        self._function = function
        self._size = size
        self._streams = streams
        self._scope: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scope = open_scope(self._size, self._streams, "stream")
        self._scope = scope
        try:
            result = self._function(*args, **kwargs)
        except BaseException as error:
            scope.close(error)
            raise
        scope.close(None)
        return result

    def report(self) -> Report:
        """Tasks, edges and fences of the last call."""
        return empty_report("stream", self._streams, 0.0) if self._scope is None else (
            self._scope.report()
        )  # fmt: skip


class CompileCall:
    """`torch.compile` of the function, called outside of any interception. Not bit-equal."""

    def __init__(self, function: Callable[..., Any]) -> None:
        import torch

        self._compiled = SerialCall(torch.compile(function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def report(self) -> Report:
        """The time of the last call."""
        report = self._compiled.report()
        report.strategy = "compile"
        report.notes.append("compiled code is not bit-equal to program order")
        return report


class AutoCall:
    """Measures the bit-equal strategies on the first calls and keeps the fastest.

    Every call is a real one: its results are those of program order whichever strategy ran it. A
    function that cannot be recorded leaves `graph` out; the report says why.
    """

    def __init__(self, function: Callable[..., Any], size: int, streams: int) -> None:
        self._candidates: dict[str, Any] = {
            "serial": SerialCall(function),
            "stream": StreamCall(function, size, streams),
            "graph": GraphCall(function, size, streams, strict=False),
        }
        self._times: dict[str, list[float]] = {name: [] for name in self._candidates}
        self._calls = dict.fromkeys(self._candidates, 0)
        self._last_turn = "serial"
        self._notes: list[str] = []
        self._last = "serial"
        self.choice: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._last = self.choice or self._next_trial()
        start = time.perf_counter()
        result = self._candidates[self._last](*args, **kwargs)
        if self.choice is None:
            if not getattr(self._candidates[self._last], "is_undecided", False):
                self._times[self._last].append(time.perf_counter() - start)
            self._drop_unreplayable()
            self._choose()
        return result

    def _next_trial(self) -> str:
        # The first call of each compiles or records, and is not counted.
        self._calls[self._turn()] += 1
        return self._last_turn

    def _turn(self) -> str:
        self._last_turn = min(self._candidates, key=lambda name: self._calls[name])
        return self._last_turn

    def _drop_unreplayable(self) -> None:
        graph = self._candidates.get("graph")
        if graph is not None and graph.refusal is not None:
            self._notes.append(f"graph was left out: {graph.refusal}")
            del self._candidates["graph"]
        elif graph is not None and self._calls["graph"] > 8 * (_TRIALS + 1):
            self._notes.append("graph was left out: a wp.capture_while loop never ran")
            del self._candidates["graph"]

    def _choose(self) -> None:
        if all(len(self._times[name]) > _TRIALS for name in self._candidates):
            medians = {name: median(self._times[name][1:]) for name in self._candidates}
            self.choice = min(medians, key=lambda name: medians[name])
            listed = ", ".join(f"{name} {1e3 * t:.2f} ms" for name, t in medians.items())
            self._notes.append(f"auto measured {listed} and keeps {self.choice}")

    def report(self) -> Report:
        """The report of the strategy that ran last, with what was measured."""
        report = self._candidates.get(self._last, self._candidates["serial"]).report()
        report.notes += self._notes
        return report

    def timeline(self) -> list[TraceEvent]:
        """The timeline of the strategy that ran last."""
        return _timeline(self._candidates.get(self._last))


class Scheduled:
    """A decorated function: call it as before.

    Attributes:
        report: What the last call did.
        strategy: The strategy's name.
    """

    def __init__(
        self, function: Callable[..., Any], size: int, streams: int, strategy: str
    ) -> None:
        functools.update_wrapper(self, function)
        self.strategy = strategy
        self._function = function
        self._options = (size, streams, strategy)
        self._call = _make(function, size, streams, strategy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function under the strategy."""
        return self._call(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @property
    def report(self) -> Report:
        """What the last call did."""
        return self._call.report()

    def timeline(self) -> list[TraceEvent]:
        """When each task of the last call ran, by stream."""
        return _timeline(self._call)


def _timeline(call: Any) -> list[TraceEvent]:
    if hasattr(call, "timeline"):
        return list(call.timeline())
    report = call.report()
    return list(getattr(report, "events", []))


def _make(function: Callable[..., Any], size: int, streams: int, strategy: str) -> Strategy:
    if strategy == "serial":
        return SerialCall(function)
    if strategy == "stream":
        return StreamCall(function, size, streams)
    if strategy == "graph":
        return GraphCall(function, size, streams, strict=True)
    if strategy == "auto":
        return AutoCall(function, size, streams)
    return CompileCall(function)
