"""What a window did, in words that say why something did not overlap and what could be gained.

Counts are of tasks that passed through the window; times are seconds. The bound is a property of
the program, not of the run: no schedule on so many streams shortens the kernels' time by more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from kscheduler.errors import WindowError
from kscheduler.graph import HOST_KINDS, TaskGraph
from kscheduler.trace import TraceEvent, write_trace

__all__ = ["BOUND_STREAMS", "FENCE_REASONS", "Report"]

BOUND_STREAMS = (1, 2, 4, 8)
_FEW = 10  # one overlapping task in so many, or one wait, is worth a reason

FENCE_REASONS = {
    "autograd": "a backward pass ran, which keeps program order",
    "compiled_callable": "a compiled function ran as one piece",
    "cpu_blocks": "a launch in CPU blocks ran in place",
    "exception": "an exception left the window",
    "host_read": "the host read a value, and waited for the tasks that write it",
    "host_visible": "the host can see this memory (numpy, dlpack), so its tasks ran in place",
    "loop_condition": "a loop's condition was read before its next iteration",
    "mesh_or_bvh": "a mesh, BVH, hash grid, volume or texture was built, refitted or freed",
    "mode_sensitive": "a torch.linalg function takes another way while it is watched, so it ran "
    "unwatched",
    "modes_disabled": "torch ops ran with dispatch modes switched off, out of the window's sight",
    "op_below_mode": "an op ran below a dispatch mode of the program's, out of the window's sight",
    "program_order": "a part that keeps program order began: a recorded function, an audit or a "
    "serial window",
    "stream_sync": "the program synchronised by itself",
    "tensor_subclass": "an op ran on a tensor subclass, which may do anything",
    "torch_run": "many torch ops in a row had nothing to wait for, and run faster with nothing in "
    "flight",
    "unknown_access": "nobody knows which memory a task touches; declare it with ks.kernel",
    "unlisted_core_call": "Warp called a native function that is not known to be safe",
    "window_exit": "the window closed",
}


@dataclass
class Report:
    """What ran in a window, and what limits it.

    Attributes:
        strategy: The strategy that ran, also where ``"auto"`` picked it.
        streams: Streams that tasks could run on.
        tasks: Intercepted launches and ops; a recorded loop is one. Torch ops that ran while
            nothing was in flight are not among them: nothing had to be looked at.
        edges: Pairs of tasks in order, those implied by others left out.
        levels: Length in tasks of the longest chain of edges.
        width_mean: Tasks per level.
        width_peak: Tasks of the widest level.
        critical_path_tasks: Tasks on the longest path by time.
        critical_path_s: Its length in seconds, 0.0 if no time was measured.
        bound: Largest possible speed-up of kernel time over one stream, by number of streams.
        fences: Times the host waited, by reason (see `FENCE_REASONS`).
        seconds_user: Time in the program's own code and in Python, in the last call.
        seconds_kernels: Run time of all tasks of the last call, summed over streams.
        seconds_waiting: Time in which the host waited, in the last call.
        overlapped: Tasks that ran while another one ran.
        notes: Sentences on what was decided and why.
        graph: The tasks and edges, if they were kept.
        events: The timeline, if it was kept.
    """

    strategy: str = "serial"
    streams: int = 1
    tasks: int = 0
    edges: int = 0
    levels: int = 0
    width_mean: float = 0.0
    width_peak: int = 0
    critical_path_tasks: int = 0
    critical_path_s: float = 0.0
    bound: dict[int, float] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    seconds_user: float = 0.0
    seconds_kernels: float = 0.0
    seconds_waiting: float = 0.0
    overlapped: int = 0
    notes: list[str] = field(default_factory=list)
    graph: TaskGraph | None = field(default=None, repr=False)
    events: list[TraceEvent] = field(default_factory=list, repr=False)

    @classmethod
    def from_graph(cls, graph: TaskGraph, **known: Any) -> Report:
        """A report with everything that the graph tells filled in, and `known` attributes."""
        levels = graph.levels()
        _, path = graph.critical_path("seconds")
        measured: dict[str, Any] = {
            "graph": graph,
            "tasks": len(graph.tasks),
            "edges": len(graph.edges),
            "levels": len(levels),
            "width_mean": graph.width_mean,
            "width_peak": graph.width_peak,
            "critical_path_tasks": len(path),
            "critical_path_s": sum(graph.tasks[index].seconds for index in path),
            "bound": {streams: graph.bound(streams) for streams in BOUND_STREAMS},
            "seconds_kernels": sum(task.seconds for task in graph.tasks),
        }
        return cls(**(measured | known))

    def to_dict(self) -> dict[str, Any]:
        """Everything but graph and timeline, for JSON; the bound's keys become strings."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        del plain["graph"], plain["events"]
        plain["bound"] = {str(streams): value for streams, value in self.bound.items()}
        plain["fences"] = dict(self.fences)
        plain["notes"] = list(self.notes)
        return plain

    def write_dot(self, path: str | PathLike[str]) -> None:
        """Writes the graph for Graphviz.

        Raises:
            WindowError: If the graph was not kept.
            OSError: If the file cannot be written.
        """
        if self.graph is None:
            raise WindowError(f"no graph was kept for the strategy {self.strategy!r}")
        Path(path).write_text(self.graph.to_dot())

    def write_trace(self, path: str | PathLike[str]) -> None:
        """Writes the timeline for chrome://tracing or ui.perfetto.dev.

        Raises:
            WindowError: If no timeline was kept.
            OSError: If the file cannot be written.
        """
        if not self.events:
            raise WindowError(f"no timeline was kept for the strategy {self.strategy!r}")
        write_trace(path, self.events)

    def __str__(self) -> str:
        return "\n".join(f"{label:<16}{text}".rstrip() for label, text in self._lines())

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "strategy", f"{self.strategy}, {_count(self.streams, 'stream')}"
        unseen = "; torch ops with nothing in flight are not seen"
        yield (
            "tasks",
            f"{self.tasks}, {_count(self.edges, 'edge')} between them"
            + (unseen if self.strategy == "stream" else ""),
        )
        if self.levels:
            yield (
                "shape",
                f"{_count(self.levels, 'level')}, {self.width_mean:.1f} tasks wide on average, "
                f"{self.width_peak} at most",
            )
            yield "critical path", self._path()
        if self.bound:
            unit = "kernel time" if self.critical_path_s else "tasks, as no time was measured"
            yield "possible gain", f"{', '.join(self._bounds())}, of {unit}"
        yield (
            "time",
            f"{_time(self.seconds_user)} in user code, {_time(self.seconds_kernels)} in kernels, "
            f"{_time(self.seconds_waiting)} waiting, in the last call or block",
        )
        yield "overlap", self._overlap()
        yield from self._fences()
        for number, note in enumerate(self.notes):
            yield "" if number else "notes", note

    def _path(self) -> str:
        length = f", {_time(self.critical_path_s)}" if self.critical_path_s else ""
        return _count(self.critical_path_tasks, "task") + length

    def _bounds(self) -> Iterator[str]:
        for streams, gain in self.bound.items():
            yield f"{gain:.2f}x on {_count(streams, 'stream')}"

    def _overlap(self) -> str:
        if self.overlapped:
            found = f"{self.overlapped} of {_count(self.tasks, 'task')} ran beside another"
            return found + self._why_few_overlapped()
        return f"no task ran beside another: {self._why_nothing_overlapped()}"

    def _why_few_overlapped(self) -> str:
        waits = self._waits()
        is_few = _FEW * self.overlapped < self.tasks <= _FEW * sum(waits.values())
        if self.strategy != "stream" or not is_few:
            return ""
        return f"; the host waited {_count(sum(waits.values()), 'time')}, {_mostly(waits)}"

    def _why_nothing_overlapped(self) -> str:
        if self.tasks < 2:
            return "there were not two of them"
        if self.strategy == "serial":
            return f"the strategy {self.strategy!r} keeps program order"
        if self.streams < 2:
            return "there was one stream; ask for more with streams="
        if self.levels == self.tasks:
            return "each one needs the one before it"
        if self.strategy == "graph":
            return self._why_no_step_overlapped()
        waits = self._waits()
        if 2 * sum(waits.values()) >= self.tasks:
            return f"the host waited too often, {_mostly(waits)}"
        return "each had finished before the next one was submitted"

    def _why_no_step_overlapped(self) -> str:
        """Why a replay, which submits nothing, ran one task at a time."""
        tasks = self.graph.tasks if self.graph is not None else []
        if tasks and not any(task.seconds for task in tasks):
            return "this recording has not been replayed yet"
        host = sum(task.seconds for task in tasks if task.kind in HOST_KINDS)
        if host and 2 * host >= sum(task.seconds for task in tasks):
            return (
                "most of the time is torch ops and declared callables, which run one after the "
                "other on the program's thread"
            )
        return "no two tasks were ready at the same time, or one had ended before the other began"

    def _waits(self) -> dict[str, int]:
        return {reason: n for reason, n in self.fences.items() if reason != "window_exit"}

    def _fences(self) -> Iterator[tuple[str, str]]:
        yield "fences", str(sum(self.fences.values()))
        width = max(map(len, self.fences), default=0)
        for reason, times in sorted(self.fences.items(), key=lambda item: (-item[1], item[0])):
            sentence = FENCE_REASONS.get(reason, "")
            yield "", f"{times:>6} {reason:<{width}}  {sentence}"


def _mostly(waits: dict[str, int]) -> str:
    reason = max(waits, key=waits.__getitem__)
    return f"mostly since {FENCE_REASONS.get(reason, reason)} ({reason})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.0f} us"
