"""Timelines in the JSON format that Chrome (chrome://tracing) and Perfetto (ui.perfetto.dev) open.

One row per stream. Times are microseconds from any origin; the file counts from the first event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

__all__ = ["TraceEvent", "write_trace"]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One task as it ran.

    Attributes:
        name: What the timeline shows.
        stream: The stream that it ran on.
        start_us: Start in microseconds.
        duration_us: Length in microseconds.
        args: More to show when the event is selected; values that JSON can hold.
    """

    name: str
    stream: int
    start_us: float
    duration_us: float
    args: Mapping[str, Any] = field(default_factory=dict)


def write_trace(
    path: str | PathLike[str],
    events: Sequence[TraceEvent],
    edges: Iterable[tuple[int, int]] = (),
) -> None:
    """Writes a timeline.

    Args:
        path: File to write, usually ``*.json``.
        events: In any order.
        edges: Pairs of indices into `events`; each is drawn as an arrow between streams.

    Raises:
        OSError: If the file cannot be written.
    """
    origin = min((event.start_us for event in events), default=0.0)
    rows: list[dict[str, Any]] = [_named(0, "process_name", "kscheduler")]
    for stream in sorted({event.stream for event in events}):
        rows.append(_named(stream, "thread_name", f"stream {stream}"))
    for event in events:
        row = _row(event.name, "X", event.stream, event.start_us - origin)
        rows.append(row | {"cat": "task", "dur": event.duration_us, "args": dict(event.args)})
    for number, (before, after) in enumerate(edges):
        rows += _arrow(number, events[before], events[after], origin)
    Path(path).write_text(json.dumps({"traceEvents": rows, "displayTimeUnit": "ns"}))


def _row(name: str, phase: str, stream: int, start_us: float) -> dict[str, Any]:
    return {"name": name, "ph": phase, "pid": 0, "tid": stream, "ts": start_us}


def _named(stream: int, kind: str, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": stream, "args": {"name": name}}


def _arrow(
    number: int, before: TraceEvent, after: TraceEvent, origin: float
) -> list[dict[str, Any]]:
    """An arrow from one event's end to another's start; both ends must lie inside their events."""
    if before.stream == after.stream:
        return []
    tail = before.start_us + 0.999 * before.duration_us - origin
    head = after.start_us - origin
    start = _row("edge", "s", before.stream, tail) | {"cat": "edge", "id": number}
    end = _row("edge", "f", after.stream, head) | {"cat": "edge", "id": number, "bp": "e"}
    return [start, end]
