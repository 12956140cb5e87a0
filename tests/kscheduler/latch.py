"""Holds a task, so that a race is forced instead of hoped for.

`held(kernel)` stops the worker that takes the kernel's next launch in this process before it runs
it. By default the launch goes on as soon as the window waits for a task: a window that forgets to
wait shows what was there before, whatever the machine is doing. Use two streams: the worker stands
still, and the thread of the window runs what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kscheduler import _core
from kscheduler.backends.streams import label_of

__all__ = ["Held", "held", "independent", "jittered"]


class Held:
    """One held name of tasks."""

    def wait(self) -> None:
        """Wait until a worker stands still before a task of that name."""
        assert _core.latch_wait_held(20.0), "no worker has taken the held task"

    @property
    def is_standing(self) -> bool:
        return _core.latch_held() > 0

    def release(self) -> None:
        _core.latch_release()


@contextmanager
def held(task: Any, kind: str = "warp", until_wait: bool = True) -> Iterator[Held]:
    """Hold tasks within the block.

    Args:
        task: A Warp kernel, or the name of a task.
        kind: Of the task, as the report knows it.
        until_wait: Let go once the window's thread waits; otherwise `release` does.
    """
    name = task if isinstance(task, str) else task.key
    _core.latch_hold(label_of(name, kind), until_wait)
    try:
        yield Held()
    finally:
        _core.latch_release()


@contextmanager
def independent() -> Iterator[None]:
    """Switch the tracker off: all tasks count as independent."""
    _core.set_tracking(False)
    try:
        yield
    finally:
        _core.set_tracking(True)


@contextmanager
def jittered(microseconds: int = 50) -> Iterator[None]:
    """Pause up to so long before each task: reaches orders that a quiet machine never shows."""
    _core.set_jitter_us(microseconds)
    try:
        yield
    finally:
        _core.set_jitter_us(0)
