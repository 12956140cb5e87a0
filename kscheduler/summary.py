"""Reports made from what a strategy has counted."""

from __future__ import annotations

from kscheduler.access import Access
from kscheduler.backends.streams import NAMES, StreamSink
from kscheduler.graph import TaskGraph
from kscheduler.intercept import warp_access
from kscheduler.program import Program
from kscheduler.report import Report
from kscheduler.task import Task
from kscheduler.trace import TraceEvent

__all__ = ["empty_report", "graph_report", "stream_report"]


def empty_report(strategy: str, streams: int, seconds: float) -> Report:
    """The report of a call that was not intercepted."""
    report = Report(strategy=strategy, streams=streams, seconds_user=seconds)
    if strategy == "serial":
        report.notes.append("nothing is intercepted under 'serial'; use 'stream' to see the tasks")
    elif not seconds:
        report.notes.append("the function has not been called yet")
    return report


def stream_report(sink: StreamSink, seconds: float, first: int = 1) -> Report:
    """The report of a sliding window from what its streams have recorded."""
    counters = sink.core.counters()
    records = sink.core.records()[first - 1 :]
    tasks = []
    events = []
    origin = min((start for _, _, start, _, _ in records), default=0)
    for label, accesses, start, end, lane in records:
        name, kind = NAMES[label]
        ranges = tuple(Access(*access) for access in accesses)
        tasks.append(Task(name, kind, ranges, (end - start) * 1e-9))
        events.append(TraceEvent(name, lane, (start - origin) / 1e3, (end - start) / 1e3))
    kernels, waiting = counters["kernel_ns"] * 1e-9, counters["wait_ns"] * 1e-9
    report = Report.from_graph(
        TaskGraph.from_tasks(tasks),
        strategy="stream",
        streams=sink.streams,
        fences=dict(sink.fences),
        seconds_user=max(0.0, seconds - waiting - counters["helped_ns"] * 1e-9),
        seconds_kernels=kernels,
        seconds_waiting=waiting,
        overlapped=counters["overlapped"],
        events=events,
    )
    report.tasks = counters["tasks"] - first + 1 + sink.torch_ops + sink.opaque_calls
    if counters["tasks"] > len(records) + first - 1:
        report.notes.append(
            f"the graph holds the first {len(records)} of {counters['tasks']} native tasks"
        )
    report.notes += _analysis_notes()
    return report


def graph_report(program: Program, seconds: float) -> Report:
    """The report of a recorded program after its last replay."""
    program.measure()
    events = program.timeline()
    report = Report.from_graph(
        program.graph,
        strategy="graph",
        streams=program.streams,
        overlapped=_overlapped(events),
        events=events,
    )
    busy = sum(event.duration_us for event in events) * 1e-6
    span = max((e.start_us + e.duration_us for e in events), default=0.0) * 1e-6
    report.seconds_kernels = busy
    report.seconds_user = max(0.0, seconds - span) if events else seconds
    report.seconds_waiting = program.seconds_waiting
    report.notes += _analysis_notes()
    return report


def _overlapped(events: list[TraceEvent]) -> int:
    count, until = 0, 0.0
    for event in sorted(events, key=lambda e: e.start_us):
        count += event.start_us < until
        until = max(until, event.start_us + event.duration_us)
    return count


def _analysis_notes() -> list[str]:
    return [
        f"kernel {name} is taken to read and write everything: {why}"
        for name, why in warp_access.failures.items()
    ]
