"""A recorded program: the graph of one call of a function, ready to run again without Python."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kscheduler import _core
from kscheduler.access import Access
from kscheduler.errors import StaleArgument, WindowError
from kscheduler.graph import TaskGraph
from kscheduler.record import EVERYTHING, RecordSink, Step
from kscheduler.task import Task
from kscheduler.trace import TraceEvent

__all__ = ["Input", "Program"]

_RANKINGS = (1, 3, 10)  # replays after which ready tasks are ordered by their measured times


@dataclass(slots=True)
class Input:
    """An argument that may be another array on each call.

    Attributes:
        index: Position among the flattened arguments.
        recorded: Its bytes in the recording.
        patches: Where native calls hold a pointer into it: (node, offset in the blob, distance).
        conditions: Loops and branches that test an element of it: (node, distance).
        current: The address that the native calls hold now.
        others: Disjoint ranges that the program uses otherwise (starts, ends), made on demand.
        is_fixed: Whether the program also reaches its memory otherwise (a global, an attribute), so
            that another array cannot take its place.
    """

    index: int
    recorded: Access
    patches: list[tuple[int, int, int]] = field(default_factory=list)
    conditions: list[tuple[int, int]] = field(default_factory=list)
    current: int = 0
    others: tuple[list[int], list[int]] | None = None
    is_fixed: bool = False

    def __post_init__(self) -> None:
        self.current = self.recorded.start


class Program:
    """Runs recorded steps on native threads; torch ops are called in between, on this thread."""

    def __init__(self, sink: RecordSink, streams: int, inputs: Sequence[Input]) -> None:
        self._sink = sink  # owns the memory
        self._replay = _core.Replay(streams)
        self._lock = threading.Lock()
        self._runs = 0
        self._waited_before = 0  # the last replay, in nanoseconds
        self._inputs = inputs
        self._nodes: dict[int, Step] = {}
        self._host: dict[int, Callable[[Any], Any]] = {}  # node -> what to call with the values
        self.streams = streams
        self.steps = sink.steps
        self.tasks = [_task(step) for step in sink.steps]
        self.graph = TaskGraph.from_tasks(self.tasks)
        self._add(sink.steps, self.tasks, self.graph)

    def _add(
        self,
        steps: list[Step],
        tasks: list[Task],
        graph: TaskGraph,
        parent: int = -1,
        side: int = 0,
    ) -> None:
        nodes = []
        for step, task in zip(steps, tasks, strict=True):
            if step.call is not None:
                node = step.call.add_to(self._replay, parent, side)
                self._find_pointers(node, step)
            elif step.kind in ("torch", "opaque"):
                node = self._replay.add_host()
                self._host[node] = host_call(self._sink, step)
            else:
                add = self._replay.add_loop if step.kind == "loop" else self._replay.add_branch
                node = add(step.condition, parent, side)
                self._find_condition(node, step.condition)
                offset = 0
                for which, body in enumerate(step.bodies):
                    inner = task.body[offset : offset + len(body)]
                    self._add(body, inner, TaskGraph.from_tasks(inner), node, which)
                    offset += len(body)
            self._nodes[node] = step
            nodes.append(node)
        for before, after in graph.edges:
            self._replay.add_edge(nodes[before], nodes[after])

    def _find_pointers(self, node: int, step: Step) -> None:
        """Notes which words of a call's arguments point into an input."""
        call = step.call
        if call is None:
            return
        for given in self._inputs:
            start, end = given.recorded.start, given.recorded.end
            if not any(a.start < end and start < a.end for a in step.accesses):
                continue
            for offset in range(0, len(call.blob) - 7, 8):
                word = int.from_bytes(call.blob[offset : offset + 8], "little")
                if start <= word < end:
                    given.patches.append((node, offset, word - start))
            if any(
                start <= word < end and not call.blob_args >> i & 1
                for i, word in enumerate(call.args)
            ):
                given.patches.append((node, -1, 0))

    def _find_condition(self, node: int, address: int) -> None:
        """Notes which input a loop or branch tests."""
        for given in self._inputs:
            if given.recorded.start <= address < given.recorded.end:
                given.conditions.append((node, address - given.recorded.start))

    def rebind(self, pointers: Sequence[int]) -> None:
        """Points the program at other input arrays. Raises StaleArgument where it cannot."""
        for given, pointer in zip(self._inputs, pointers, strict=True):
            if pointer == given.current:
                continue
            if given.is_fixed:
                raise StaleArgument(
                    f"argument {given.index} is another array, and the recorded one is also used "
                    "through an attribute, a global, a closure or a view of another framework"
                )
            size = given.recorded.end - given.recorded.start
            if pointer != given.recorded.start and self._is_used(given, pointer, pointer + size):
                raise StaleArgument(
                    f"argument {given.index} (bytes {pointer:#x}..{pointer + size:#x}) overlaps "
                    "memory that the recording uses for something else; pass a copy"
                )
            if any(offset < 0 for _, offset, _ in given.patches):
                raise StaleArgument(f"argument {given.index} is copied by address; keep its array")
            for node, offset, distance in given.patches:
                self._replay.patch(node, offset, pointer + distance)
            for node, distance in given.conditions:
                self._replay.set_condition(node, pointer + distance)
            given.current = pointer

    def _is_used(self, given: Input, start: int, end: int) -> bool:
        """Whether a task uses these bytes for something else than this input."""
        if given.others is None:
            own = given.recorded
            used = self._sink.tape.constant_memory()
            for step in self._nodes.values():
                if step.kind != "torch":  # whose results are new on each replay
                    used += step.accesses
            given.others = _union(
                (a.start, a.end)
                for a in used
                if a != EVERYTHING and not (own.start <= a.start and a.end <= own.end)
            )
        starts, ends = given.others
        position = bisect_right(ends, start)
        return position < len(starts) and starts[position] < end

    @property
    def seconds_waiting(self) -> float:
        """Time that this thread waited in the last replay, in seconds."""
        return float(self._replay.wait_ns - self._waited_before) * 1e-9

    def run(self, values: list[Any] | None) -> None:
        """One replay; `values` are the torch tape's, or None if it recorded nothing.

        Raises WindowError if this program is running already, and whatever a torch op raises.
        """
        if not self._lock.acquire(blocking=False):
            raise WindowError(
                "this recorded function is already running; replays of one recording cannot nest "
                "or overlap. Decorate the function once per thread."
            )
        replay = self._replay
        try:
            self._waited_before = replay.wait_ns
            replay.begin()
            try:
                host = self._host
                while (node := replay.advance()) >= 0:
                    host[node](values)
                    replay.complete_host(node)
            except BaseException:
                replay.cancel()
                raise
            error = replay.take_error()
            if error is not None:
                raise RuntimeError(f"{self._nodes[error[1]].name}: {error[0]}")
            self._runs += 1
            if self._runs in _RANKINGS:
                replay.rank()
        finally:
            self._lock.release()

    def run_in(self, values: list[Any] | None, order: Sequence[int]) -> None:
        """Runs the top-level steps one by one in the given order, on this thread."""
        for index in order:
            step = self.steps[index]
            if step.kind in ("torch", "opaque"):
                host_call(self._sink, step)(values)
                continue
            alone = _core.Replay(1)
            add_in_order(alone, [step])
            alone.begin()
            alone.advance()

    def measure(self) -> None:
        """Copies measured run times to the tasks, for the report."""
        durations = self._replay.durations()
        node = iter(range(len(durations)))
        self._measure(self.steps, self.tasks, durations, node)
        self.graph = TaskGraph(self.tasks, self.graph.edges)

    def _measure(self, steps: list[Step], tasks: list[Task], durations: Any, node: Any) -> None:
        for step, task in zip(steps, tasks, strict=True):
            task.seconds = durations[next(node)] * 1e-9
            offset = 0
            for body in step.bodies:
                self._measure(body, task.body[offset : offset + len(body)], durations, node)
                offset += len(body)

    def timeline(self) -> list[TraceEvent]:
        """When each task of the last replay ran, by stream."""
        events = self._replay.events()
        origin = min((start for _, _, start, _ in events), default=0)
        return [
            TraceEvent(
                self._nodes[node].name,
                lane,
                (start - origin) / 1e3,
                (end - start) / 1e3,
                {"line": self._nodes[node].line},
            )
            for node, lane, start, end in events
        ]


def add_in_order(
    replay: _core.Replay, steps: Sequence[Step], parent: int = -1, side: int = 0
) -> None:
    """Adds native steps to a graph, each after the one before."""
    previous = None
    for step in steps:
        if step.call is not None:
            node = step.call.add_to(replay, parent, side)
        else:
            add = replay.add_loop if step.kind == "loop" else replay.add_branch
            node = add(step.condition, parent, side)
            for which, body in enumerate(step.bodies):
                add_in_order(replay, body, node, which)
        if previous is not None:
            replay.add_edge(previous, node)
        previous = node


def host_call(sink: RecordSink, step: Step) -> Callable[[Any], Any]:
    """What a host step runs, given the torch tape's values."""
    if step.action is not None:
        action = step.action
        return lambda values: action()
    run, index = sink.tape.run, step.torch_index
    return lambda values: run(values, index)


def _task(step: Step) -> Task:
    body = [_task(inner) for side in step.bodies for inner in side]
    return Task(step.name, step.kind, step.accesses, 0.0, step.line, body)


def _union(ranges: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Disjoint sorted ranges that cover the same bytes, as (starts, ends)."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(ranges):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends
