"""The timeline of one step: which task ran on which stream, and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from kscheduler.trace import TraceEvent

matplotlib.use("Agg")
from matplotlib import pyplot

__all__ = ["plot_timeline"]

_COLOURS = pyplot.get_cmap("tab20").colors


def plot_timeline(events: Sequence[TraceEvent], title: str, path: Path) -> None:
    """Draws one bar per task, one row per stream, and writes a PNG.

    Args:
        events: The tasks of one step, at least one.
        title: Heading.
        path: The PNG file; its folder exists.
    """
    streams = sorted({event.stream for event in events})
    origin = min(event.start_us for event in events)
    end = max(event.start_us + event.duration_us for event in events)
    colours = _colours_by_name(events)
    figure, axes = pyplot.subplots(figsize=(14, 2.0 + 0.9 * len(streams)), layout="constrained")
    for row, stream in enumerate(streams):
        mine = [event for event in events if event.stream == stream]
        spans = [((event.start_us - origin) / 1e3, event.duration_us / 1e3) for event in mine]
        axes.broken_barh(
            spans,
            (row - 0.4, 0.8),
            facecolors=[colours[event.name] for event in mine],
            edgecolor="white",
            linewidth=0.2,
        )
    busy = sum(event.duration_us for event in events) / 1e3
    axes.set_yticks(range(len(streams)), [f"stream {stream}" for stream in streams])
    axes.set_xlim(0, max((end - origin) / 1e3, 1e-6))
    axes.set_xlabel(
        f"ms  ({len(events)} tasks, {busy:.2f} ms of work in {(end - origin) / 1e3:.2f} ms)"
    )
    axes.set_title(title)
    axes.invert_yaxis()
    _add_legend(figure, events, colours)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _colours_by_name(events: Sequence[TraceEvent]) -> dict[str, tuple[float, float, float]]:
    grey = (0.75, 0.75, 0.75)
    longest = _names_by_time(events)
    return {
        name: _COLOURS[rank] if rank < len(_COLOURS) else grey for rank, name in enumerate(longest)
    }


def _names_by_time(events: Sequence[TraceEvent]) -> list[str]:
    totals: dict[str, float] = {}
    for event in events:
        totals[event.name] = totals.get(event.name, 0.0) + event.duration_us
    return sorted(totals, key=lambda name: -totals[name])


def _add_legend(figure, events: Sequence[TraceEvent], colours: dict) -> None:
    shown = _names_by_time(events)[:8]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colours[name]) for name in shown]
    figure.legend(handles, shown, ncols=4, fontsize=7, loc="outside lower center")
