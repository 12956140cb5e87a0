"""Tasks: one intercepted launch or op, with the bytes that it touches."""

from __future__ import annotations

from dataclasses import dataclass, field

from kscheduler.access import Access

__all__ = ["Task"]


@dataclass(slots=True)
class Task:
    """One intercepted launch or op, as the graph, the report and the trace see it.

    Attributes:
        name: Kernel or op name, as a user knows it.
        kind: ``"warp"``, ``"memory"``, ``"torch"``, ``"opaque"`` or ``"loop"``.
        accesses: Everything the task reads and writes.
        seconds: Measured run time, 0.0 while unknown.
        line: ``"file.py:12"`` of the user's call, or "".
        body: The tasks of one iteration, for a loop; its run time is that of all iterations.
    """

    name: str
    kind: str
    accesses: tuple[Access, ...] = ()
    seconds: float = 0.0
    line: str = ""
    body: list[Task] = field(default_factory=list)
